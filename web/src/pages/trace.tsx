// The skeleton of a page about one run of a model: its title, what is read, and what the page shows of the trace.
import type { ComponentChildren } from "preact";
import { asked, useTrace, type Caps, type Trace } from "../api";
import { t } from "../strings";
import { Ask, Await, Go, Panel, Title, Warnings } from "../ui";

type Props = {
  name: string; caps: Caps; lede?: string; extra?: ComponentChildren; foot?: ComponentChildren;
  usable?: boolean; nothing?: string; instead?: string; // where there is nothing to show: why, and which page has something
  children: (trace: Trace) => ComponentChildren;
};

export function TracePage({ name, caps, lede, extra, foot, usable = caps.kind !== "vectors", nothing = `${name}.nothing`, instead = "space", children }: Props) {
  const question = asked(caps);
  const trace = useTrace(usable ? question : null);
  if (!usable) {
    return (
      <>
        <Title name={name} />
        <Panel><p>{t(nothing)}</p><p><Go to={instead} class="button">{t(`pages.${instead}`)}</Go></p></Panel>
      </>
    );
  }
  return (
    <>
      <Title name={name} lede={lede} />
      <Ask caps={caps} text={question.text} extra={extra} />
      <Await of={trace}>{(trace) => <><Warnings of={trace.warnings} />{children(trace)}</>}</Await>
      {foot}
    </>
  );
}
