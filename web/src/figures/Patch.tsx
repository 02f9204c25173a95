// A vector as a patch of coloured cells: sixteen in a row or as many as asked for, purple below zero, orange above.
import { useLayoutEffect, useRef } from "preact/hooks";
import { diverging, index } from "./colour";
import type { Theme } from "./pen";
import type { Tensor } from "./packed";
import { rowOf } from "./model";

const WIDE = 16;
const tables = new Map<boolean, Uint8Array>();

function colours(dark: boolean): Uint8Array {
  if (!tables.has(dark)) tables.set(dark, diverging(dark));
  return tables.get(dark)!;
}

/** The greatest size among all rows: one scale for the tokens of a stage. */
export function greatest(of: Tensor): number {
  let most = 0;
  for (const x of of.values) most = Math.max(most, Math.abs(x));
  return most || 1;
}

export function Patch({ of, row, limit, theme, label, wide: most = WIDE }: { of: Tensor; row: number; limit: number; theme: Theme; label?: string; wide?: number }) {
  const ref = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    const pen = ref.current?.getContext("2d");
    if (!pen) return; // no canvas here: the numbers are in the table
    const numbers = rowOf(of, row);
    const wide = Math.min(most, numbers.length);
    const high = Math.ceil(numbers.length / wide);
    pen.canvas.width = wide;
    pen.canvas.height = high;
    const image = pen.createImageData(wide, high);
    const known = colours(theme.dark);
    numbers.forEach((x, i) => {
      const at = 3 * index(x, limit, "sqrt", true);
      image.data.set([known[at], known[at + 1], known[at + 2], 255], 4 * i);
    });
    pen.putImageData(image, 0, 0);
  }, [of, row, limit, theme, most]);
  return <canvas ref={ref} class="mp-patch" data-tip={label} aria-hidden="true" />;
}
