// Colours that everybody can tell apart: one hue from the background on for weights, two for signed numbers.
import type { Palette, Scale } from "./types";

export type RGB = readonly [number, number, number];

const STOPS = {
  blue: {
    light: ["#ffffff", "#dce9f7", "#a6c8e8", "#5b99d1", "#2463a8", "#08306b"],
    dark: ["#14171c", "#17324f", "#22608f", "#4b97cc", "#a8d3f0", "#fdf7dc"],
  },
  cividis: {
    light: ["#fee838", "#e1cc55", "#c3b369", "#a59c74", "#8a8779", "#707173", "#575d6d", "#3b496c", "#123570", "#00224e"],
    dark: ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8779", "#a59c74", "#c3b369", "#e1cc55", "#fee838"],
  },
  signed: {
    light: ["#542788", "#998ec3", "#d8daeb", "#ffffff", "#fee0b6", "#f1a340", "#b35806"],
    dark: ["#9ad4f5", "#56b4e9", "#23506b", "#14171c", "#6b4c0a", "#e69f00", "#ffcf66"],
  },
} as const;

/** The smallest share of the limit that a logarithmic scale still shows. */
export const FLOOR = 1e-4;

export const OKABE_ITO = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B8A900", "#777777"] as const;
export const DASHES: readonly (readonly number[])[] = [[], [6, 3], [2, 3], [8, 3, 2, 3], [12, 4], [4, 2, 1, 2], [1, 2], [10, 2, 2, 2]];

export function rgb(hex: string): RGB {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

export function css(colour: RGB): string {
  return "#" + colour.map((c) => Math.round(c).toString(16).padStart(2, "0")).join("");
}

/** 256 colours between stops that stand at equal distances. */
export function table(stops: readonly string[]): Uint8Array {
  const known = stops.map(rgb);
  const out = new Uint8Array(256 * 3);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (known.length - 1);
    const k = Math.min(Math.floor(at), known.length - 2);
    for (let c = 0; c < 3; c++) out[3 * i + c] = Math.round(known[k][c] + (known[k + 1][c] - known[k][c]) * (at - k));
  }
  return out;
}

export function ramp(palette: Palette = "blue", dark = false): Uint8Array {
  return table(STOPS[palette][dark ? "dark" : "light"]);
}

export function diverging(dark = false): Uint8Array {
  return table(STOPS.signed[dark ? "dark" : "light"]);
}

/** Where a value stands between 0 and its limit: v, √v, or log v from FLOOR on. */
export function level(value: number, limit: number, scale: Scale = "linear"): number {
  const share = Math.min(Math.max(value / (limit || 1), 0), 1);
  if (scale === "sqrt") return Math.sqrt(share);
  if (scale === "log") return share <= FLOOR ? 0 : 1 - Math.log10(share) / Math.log10(FLOOR);
  return share;
}

/** The row of the table a value has: 0 is the background of a ramp, 128 that of a diverging one. */
export function index(value: number, limit: number, scale: Scale, signed: boolean): number {
  const size = level(Math.abs(value), limit, scale);
  return signed ? Math.round(127.5 + Math.sign(value) * size * 127.5) : Math.round(size * 255);
}

/** How light a colour looks: relative luminance, 0 … 1 (WCAG 2.2). */
export function luminance(colour: RGB): number {
  const [r, g, b] = colour.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Black or white, whichever reads better on a colour. */
export function ink(colour: RGB): string {
  return luminance(colour) > 0.179 ? "#000000" : "#ffffff";
}

/** The greatest size among the values: the top of their colour scale. */
export function greatest(values: ArrayLike<number>): number {
  let top = 0;
  for (let i = 0; i < values.length; i++) {
    const size = Math.abs(values[i]);
    if (size > top && size < Infinity) top = size;
  }
  return top || 1;
}
