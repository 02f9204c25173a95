// A canvas that shows a drawing, and the buttons that save it.
import type { ComponentChildren, Ref } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { theme as themeNow } from "./hooks";
import { onCanvas, png, svg, type Drawing, type Theme } from "./pen";
import { say } from "./say";
import type { About } from "./types";

export function Canvas({ drawing, theme }: { drawing: Drawing; theme: Theme }) {
  const ref = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    if (ref.current) onCanvas(ref.current, drawing, theme);
  }, [drawing, theme]);
  return <canvas ref={ref} class="fig-canvas" aria-hidden="true" />;
}

export interface StageProps {
  label: string;
  drawing: Drawing;
  theme: Theme;
  onKey: (e: KeyboardEvent) => boolean; // whether the key meant something here
  onClick?: (at: { x: number; y: number }) => void;
  onMove?: (at: { x: number; y: number } | null) => void;
  scroll?: Ref<HTMLDivElement>;
  children?: ComponentChildren;
}

/** A drawing that scrolls, takes the keyboard, and tells where it is pointed at. */
export function Stage({ label, drawing, theme, onKey, onClick, onMove, scroll, children }: StageProps) {
  const at = (e: MouseEvent) => {
    const box = (e.currentTarget as HTMLElement).getBoundingClientRect();
    return { x: e.clientX - box.left, y: e.clientY - box.top };
  };
  return (
    <div ref={scroll} class="fig-scroll" tabIndex={0} role="application" aria-label={label} onKeyDown={(e) => onKey(e) && e.preventDefault()}>
      <div role="presentation" class={onClick ? "fig-stage fig-pointer" : "fig-stage"} style={{ width: `${drawing.width}px`, height: `${drawing.height}px` }}
        onClick={onClick && ((e) => onClick(at(e)))} onMouseMove={onMove && ((e) => onMove(at(e)))} onMouseLeave={onMove && (() => onMove(null))}>
        <Canvas drawing={drawing} theme={theme} />
        {children}
      </div>
    </div>
  );
}

export interface Exports {
  name: string; // of the file, without its ending
  draw?: () => Drawing;
  csv?: () => string;
  json?: () => unknown;
  html?: () => Promise<string> | string;
  python?: string;
  link?: () => string;
}

export function download(name: string, content: Blob | string, type = "text/plain"): void {
  const blob = typeof content === "string" ? new Blob([content], { type: `${type};charset=utf-8` }) : content;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea"); // a page from disk may not use the clipboard's own door
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** What a figure is of, in one line. */
export function describe(about: About): string {
  return Object.entries(about)
    .filter(([, v]) => v !== null && v !== "")
    .map(([k, v]) => `${k}: ${String(v).length > 200 ? String(v).slice(0, 200) + "…" : v}`)
    .join(" · ");
}

export function ExportBar({ title, about = {}, exports }: { title: string; about?: About; exports: Exports }) {
  const [said, say_] = useState("");
  const told = async (text: string) => {
    await copy(text);
    say_(say("copied"));
    setTimeout(() => say_(""), 2000);
  };
  const { name, draw, csv, json, html, python, link } = exports;
  const button = (label: string, title: string, act: () => void) => (
    <button type="button" class="fig-button" title={title} aria-label={title} onClick={act}>
      {label}
    </button>
  );
  const save = (format: string) => say("saveAs", { format });
  return (
    <div class="fig-exports">
      {draw && button("PNG", save("PNG"), async () => {
        const blob = await png(draw(), themeNow());
        if (blob) download(`${name}.png`, blob);
      })}
      {draw && button("SVG", save("SVG"), () => download(`${name}.svg`, svg(draw(), themeNow(), title, describe(about)), "image/svg+xml"))}
      {csv && button("CSV", save("CSV"), () => download(`${name}.csv`, csv(), "text/csv"))}
      {json && button("JSON", save("JSON"), () => download(`${name}.json`, JSON.stringify(json()), "application/json"))}
      {html && button("HTML", save("HTML"), async () => download(`${name}.html`, await html(), "text/html"))}
      {python && button("Python", say("copyPython"), () => void told(python))}
      {link && button("Link", say("copyLink"), () => void told(link()))}
      <span role="status" class="fig-status">{said}</span>
    </div>
  );
}

export interface FrameProps {
  title: string;
  about?: About;
  note?: string;
  exports?: Exports;
  lead?: ComponentChildren; // stands beside the heading
  children?: ComponentChildren;
}

/** A heading, what the figure is of, its exports, and the figure. */
export function Frame({ title, about, note, exports, lead, children }: FrameProps) {
  return (
    <section class="fig" aria-label={title}>
      <div class="fig-head">
        <h2 class="fig-title">{title}</h2>
        {lead}
        {exports && <ExportBar title={title} about={about} exports={exports} />}
      </div>
      {about && <p class="fig-about" dir="auto">{describe(about)}</p>}
      {note && <p class="fig-note">{note}</p>}
      {children}
    </section>
  );
}
