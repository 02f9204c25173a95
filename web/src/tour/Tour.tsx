// The tour: one picture in about ten states, from a sentence down to one multiplication and back; played, or at one's own pace.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Caps } from "../api";
import { Formula, useTheme, useWidth } from "../figures";
import { ramp, index } from "../figures/colour";
import { rowOf } from "../figures/model";
import { Patch } from "../figures/Patch";
import { Explained } from "../glossary";
import { say } from "../live";
import { follow, type Drawn } from "../picture";
import { t } from "../strings";
import { Select } from "../ui";
import { choice, go, set, target, whole } from "../url";
import type { Actor } from "./scenes";
import { stepsOf } from "./steps";

const PACES = ["slow", "normal", "fast"] as const;
const SPEED = { slow: 1.8, normal: 1, fast: 0.55 };

export function Tour({ figure, caps }: { figure: Drawn; caps: Caps }) {
  const steps = useMemo(() => stepsOf(figure.data, caps), [figure, caps]);
  const at = whole("s", 1, 1, steps.length) - 1;
  const step = steps[at];
  const [playing, setPlaying] = useState(false);
  const pace = choice("pace", PACES, "normal");
  const move = (next: number) => next >= 0 && next < steps.length && set({ s: next + 1 }, "replace");
  const leave = () => go(target("home"));
  const play = () => {
    if (!playing && at === steps.length - 1) move(0);
    setPlaying(!playing);
  };
  useEffect(() => say(`${step.title}. ${step.text}`), [step]);
  useEffect(() => {
    if (!playing) return;
    const timer = window.setTimeout(() => (at === steps.length - 1 ? setPlaying(false) : move(at + 1)), (2500 + 45 * step.text.length) * SPEED[pace]);
    return () => window.clearTimeout(timer);
  }, [playing, at, pace, steps]);
  // Listen before the step is painted: a key that is pressed at once must not start from the previous step.
  useLayoutEffect(() => {
    const keys = (e: KeyboardEvent) => {
      const on = e.target as HTMLElement;
      if (e.ctrlKey || e.metaKey || e.altKey || on.closest("input, textarea, select, dialog")) return;
      const does = { ArrowRight: () => move(at + 1), ArrowLeft: () => move(at - 1), Home: () => move(0), End: () => move(steps.length - 1), Escape: leave, " ": play }[e.key];
      if (!does || (e.key === " " && on.closest("button, a, summary"))) return;
      e.preventDefault();
      if (e.key !== " ") setPlaying(false);
      does();
    };
    window.addEventListener("keydown", keys);
    return () => window.removeEventListener("keydown", keys);
  });
  const touch = useRef<[number, number]>([0, 0]);
  const swipe = {
    onTouchStart: (e: TouchEvent) => (touch.current = [e.touches[0].clientX, e.touches[0].clientY]),
    onTouchEnd: (e: TouchEvent) => {
      const [dx, dy] = [e.changedTouches[0].clientX - touch.current[0], e.changedTouches[0].clientY - touch.current[1]];
      if (Math.abs(dx) < 40 || Math.abs(dx) < 1.5 * Math.abs(dy)) return;
      setPlaying(false);
      move(at + (dx < 0 ? 1 : -1));
    },
  };
  const link = step.stage && follow(figure.data.name, figure.data.texts[0], step.stage, figure.data.pictures[0].row);
  return (
    <section class="panel tour" aria-label={t("tour.label")} data-step={step.name} {...swipe}>
      <div class="tour-say">
        <h2>{t("tour.step", { n: at + 1, of: steps.length, title: step.title })}</h2>
        <p><Explained text={step.text} /></p>
      </div>
      <Stage steps={steps} at={at} />
      <div class="tour-foot">
        <div class="row">
          <button type="button" disabled={at === 0} onClick={() => { setPlaying(false); move(at - 1); }}>{t("common.previous")}</button>
          <button type="button" aria-pressed={playing} onClick={play}>{t(playing ? "tour.pause" : "tour.play")}</button>
          <button type="button" class="primary" disabled={at === steps.length - 1} onClick={() => { setPlaying(false); move(at + 1); }}>{t("common.next")}</button>
          <Select label={t("tour.pace")} hideLabel value={pace} onChange={(p) => set({ pace: p }, "replace")} choices={PACES.map((p) => ({ value: p, label: t(`tour.paces.${p}`) }))} />
          <button type="button" class="quiet" onClick={leave}>{t("tour.end")}</button>
          <ol class="tour-dots" aria-label={t("tour.steps")}>
            {steps.map((s, i) => <li key={s.name}><button type="button" aria-label={`${i + 1} ${s.title}`} aria-current={i === at ? "step" : undefined} onClick={() => { setPlaying(false); move(i); }} /></li>)}
          </ol>
        </div>
        <div class="tour-more">
          {step.equations.map((line) => <Formula key={line} of={line} />)}
          {link ? <a href={link.href} onClick={link.onClick}>{t("tour.more", { page: t(`pages.${step.stage!.page}`) })}</a> : null}
        </div>
      </div>
    </section>
  );
}

/** All actors of all steps; those that the step has are seen. One that comes or goes waits where it is needed next, or was last. */
function Stage({ steps, at }: { steps: ReturnType<typeof stepsOf>; at: number }) {
  const [ref, w] = useWidth(320);
  const [h, setHeight] = useState(420);
  useLayoutEffect(() => {
    const measure = () => setHeight(Math.max(300, Math.min(460, window.innerHeight - (window.innerWidth < 860 ? 470 : 420))));
    measure();
    window.addEventListener("resize", measure);
    return () => window.removeEventListener("resize", measure);
  }, []);
  const drawn = useMemo(() => steps.map((s) => new Map(s.draw({ w, h }).map((a) => [a.key, a]))), [steps, w, h]);
  const keys = useMemo(() => [...new Set(drawn.flatMap((d) => [...d.keys()]))], [drawn]);
  const nearest = (key: string): Actor => {
    for (let d = 0; ; d++) {
      const actor = drawn[at - d]?.get(key) ?? drawn[at + d]?.get(key);
      if (actor) return actor;
    }
  };
  return (
    <div class="tour-stage" ref={ref} style={{ height: `${h}px` }} role="group" aria-label={steps[at].title}>
      {keys.map((key) => <Shown key={key} actor={nearest(key)} seen={drawn[at].has(key)} />)}
    </div>
  );
}

function Shown({ actor, seen }: { actor: Actor; seen: boolean }) {
  const theme = useTheme();
  const { kind, x, y, w, h, tone = "", align = "start", fade = 1 } = actor;
  const style = { transform: `translate(${x}px, ${y}px)`, width: `${w}px`, height: `${h}px`, opacity: seen ? fade : 0, textAlign: align };
  return (
    <div class={`actor is-${kind} ${tone}`} style={style} data-seen={seen} aria-hidden={!seen || kind === "bar" ? "true" : undefined} dir={kind === "text" && align === "start" ? "auto" : undefined}>
      {kind === "vector" ? <Patch of={actor.of!} row={actor.row!} limit={actor.limit!} wide={actor.of!.shape[1]} theme={theme} /> : kind === "grid" ? <Grid actor={actor} dark={theme.dark} /> : actor.text}
    </div>
  );
}

/** Weights as cells, dark where they are large. */
function Grid({ actor, dark }: { actor: Actor; dark: boolean }) {
  const ref = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    const pen = ref.current?.getContext("2d");
    if (!pen) return;
    const [rows, columns] = actor.of!.shape;
    Object.assign(pen.canvas, { width: columns, height: rows });
    const image = pen.createImageData(columns, rows);
    const colours = ramp("blue", dark);
    for (let i = 0; i < rows; i++) rowOf(actor.of!, i).forEach((x, j) => image.data.set([...colours.subarray(3 * index(Math.abs(x), actor.limit!, "sqrt", false)).slice(0, 3), 255], 4 * (i * columns + j)));
    pen.putImageData(image, 0, 0);
  }, [actor, dark]);
  return <canvas ref={ref} aria-hidden="true" />;
}
