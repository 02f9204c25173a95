// The theme and the width a figure is drawn for, and canvases that follow both.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { DARK, LIGHT, type Theme } from "./pen";

/** The theme now: what <html data-theme> says, then the notebook, then the system. */
export function theme(): Theme {
  const said = document.documentElement.dataset.theme;
  if (said === "dark" || said === "light") return said === "dark" ? DARK : LIGHT;
  const notebook = document.body?.dataset.jpThemeLight;
  if (notebook !== undefined) return notebook === "false" ? DARK : LIGHT;
  return globalThis.matchMedia?.("(prefers-color-scheme: dark)").matches ? DARK : LIGHT;
}

export function useTheme(): Theme {
  const [now, set] = useState(theme);
  useEffect(() => {
    const follow = () => set(theme());
    const media = globalThis.matchMedia?.("(prefers-color-scheme: dark)");
    media?.addEventListener("change", follow);
    const watch = new MutationObserver(follow);
    watch.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    watch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
    return () => {
      media?.removeEventListener("change", follow);
      watch.disconnect();
    };
  }, []);
  return now;
}

/** The width of an element, in whole tens so that a scroll bar does not make it flicker. */
export function useWidth(fallback = 720): [{ current: HTMLDivElement | null }, number] {
  const ref = useRef<HTMLDivElement | null>(null);
  const [width, set] = useState(fallback);
  useLayoutEffect(() => {
    const el = ref.current;
    if (!el) return;
    const measure = () => el.clientWidth > 0 && set(Math.floor(el.clientWidth / 10) * 10);
    measure();
    if (!globalThis.ResizeObserver) return;
    const watch = new ResizeObserver(measure);
    watch.observe(el);
    return () => watch.disconnect();
  }, []);
  return [ref, width];
}

/** A value that the caller may hold; where it does not, it is held here. */
export function useHeld<T>(given: T | undefined, start: T, tell?: (value: T) => void): [T, (value: T) => void] {
  const [own, setOwn] = useState<T>(start);
  const set = (value: T) => {
    setOwn(value);
    tell?.(value);
  };
  return [given === undefined ? own : given, set];
}

let count = 0;
/** An id of its own for each component. */
export function useName(prefix: string): string {
  const ref = useRef("");
  if (!ref.current) ref.current = `${prefix}-${++count}`;
  return ref.current;
}
