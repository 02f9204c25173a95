// One way to draw, two things to draw on: a canvas, and an SVG file of real vectors and text.

export interface Theme {
  dark: boolean;
  background: string;
  ink: string;
  faint: string; // grid lines, masks
  soft: string; // secondary text
  accent: string;
}

export const LIGHT: Theme = { dark: false, background: "#ffffff", ink: "#1a1d21", faint: "#d5d9de", soft: "#565d66", accent: "#b3470b" };
export const DARK: Theme = { dark: true, background: "#14171c", ink: "#e8eaed", faint: "#3a4048", soft: "#a3abb5", accent: "#ffb454" };

/** What the drawing functions use of a canvas context. */
export interface Pen {
  fillStyle: string | CanvasGradient | CanvasPattern;
  strokeStyle: string | CanvasGradient | CanvasPattern;
  lineWidth: number;
  globalAlpha: number;
  font: string;
  textAlign: CanvasTextAlign;
  textBaseline: CanvasTextBaseline;
  fillRect(x: number, y: number, w: number, h: number): void;
  strokeRect(x: number, y: number, w: number, h: number): void;
  beginPath(): void;
  moveTo(x: number, y: number): void;
  lineTo(x: number, y: number): void;
  bezierCurveTo(a: number, b: number, c: number, d: number, x: number, y: number): void;
  arc(x: number, y: number, r: number, from: number, to: number): void;
  closePath(): void;
  stroke(): void;
  fill(): void;
  fillText(text: string, x: number, y: number): void;
  setLineDash(dash: number[]): void;
  save(): void;
  restore(): void;
  translate(x: number, y: number): void;
  rotate(angle: number): void;
}

/** A picture of known size that can be painted on either. */
export interface Drawing {
  width: number;
  height: number;
  paint(pen: Pen, theme: Theme): void;
}

export const FONT = "12px system-ui, sans-serif";
export const SMALL = "11px system-ui, sans-serif";
export const BOLD = "600 13px system-ui, sans-serif";

/** About how wide a text is, without a canvas to ask. */
export function textWidth(text: string, size = 12): number {
  let width = 0;
  for (const c of text) width += c.codePointAt(0)! > 0x2e80 ? size : "il.,:;|'!()[]·".includes(c) ? size * 0.33 : /[A-Zmw@%]/.test(c) ? size * 0.72 : size * 0.57;
  return width;
}

/** A colour for every cell of a grid. A canvas takes it as one image, an SVG as rectangles. */
export function cells(pen: Pen, x: number, y: number, w: number, h: number, rows: number, columns: number, colours: Uint8Array, background: string): void {
  if (pen instanceof SvgPen) return pen.cells(x, y, w, h, rows, columns, colours, background);
  const image = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    image.data[4 * i] = colours[3 * i];
    image.data[4 * i + 1] = colours[3 * i + 1];
    image.data[4 * i + 2] = colours[3 * i + 2];
    image.data[4 * i + 3] = 255;
  }
  const small = document.createElement("canvas");
  small.width = columns;
  small.height = rows;
  small.getContext("2d")!.putImageData(image, 0, 0);
  const context = pen as CanvasRenderingContext2D;
  context.imageSmoothingEnabled = false;
  context.drawImage(small, x, y, w, h);
}

const escaped = (text: string) =>
  text
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "")
    .replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]!);
const r = (n: number) => String(Math.round(n * 100) / 100);

/** A pen that writes SVG. */
export class SvgPen implements Pen {
  fillStyle: string | CanvasGradient | CanvasPattern = "#000";
  strokeStyle: string | CanvasGradient | CanvasPattern = "#000";
  lineWidth = 1;
  globalAlpha = 1;
  font = FONT;
  textAlign: CanvasTextAlign = "start";
  textBaseline: CanvasTextBaseline = "alphabetic";
  private out: string[] = [];
  private path: string[] = [];
  private dash: number[] = [];
  private transform: string[] = [];
  private kept: string[][] = [];

  private add(shape: string): void {
    const by = this.transform.length ? ` transform="${this.transform.join(" ")}"` : "";
    const alpha = this.globalAlpha < 1 ? ` opacity="${r(this.globalAlpha)}"` : "";
    this.out.push(shape.replace("/>", `${by}${alpha}/>`).replace("<text", `<text${by}${alpha}`));
  }
  private line(): string {
    const dash = this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : "";
    return `fill="none" stroke="${this.strokeStyle}" stroke-width="${r(this.lineWidth)}"${dash}`;
  }
  fillRect(x: number, y: number, w: number, h: number): void {
    this.add(`<rect x="${r(x)}" y="${r(y)}" width="${r(w)}" height="${r(h)}" fill="${this.fillStyle}"/>`);
  }
  strokeRect(x: number, y: number, w: number, h: number): void {
    this.add(`<rect x="${r(x)}" y="${r(y)}" width="${r(w)}" height="${r(h)}" ${this.line()}/>`);
  }
  beginPath(): void {
    this.path = [];
  }
  moveTo(x: number, y: number): void {
    this.path.push(`M${r(x)} ${r(y)}`);
  }
  lineTo(x: number, y: number): void {
    this.path.push(`L${r(x)} ${r(y)}`);
  }
  bezierCurveTo(a: number, b: number, c: number, d: number, x: number, y: number): void {
    this.path.push(`C${r(a)} ${r(b)} ${r(c)} ${r(d)} ${r(x)} ${r(y)}`);
  }
  arc(x: number, y: number, radius: number): void {
    const R = r(radius); // whole circles are all that is drawn
    this.path.push(`M${r(x - radius)} ${r(y)}a${R} ${R} 0 1 0 ${r(2 * radius)} 0a${R} ${R} 0 1 0 ${r(-2 * radius)} 0`);
  }
  closePath(): void {
    this.path.push("Z");
  }
  stroke(): void {
    this.add(`<path d="${this.path.join("")}" ${this.line()}/>`);
  }
  fill(): void {
    this.add(`<path d="${this.path.join("")}" fill="${this.fillStyle}"/>`);
  }
  fillText(text: string, x: number, y: number): void {
    const anchor = { start: "start", left: "start", center: "middle", right: "end", end: "end" }[this.textAlign];
    const base = { middle: "central", top: "hanging", bottom: "auto", alphabetic: "auto", hanging: "hanging", ideographic: "auto" }[this.textBaseline];
    const [, weight, size] = /^(?:(\d+) )?([\d.]+)px/.exec(this.font) ?? ["", "", "12"];
    const bold = weight ? ` font-weight="${weight}"` : "";
    this.add(`<text x="${r(x)}" y="${r(y)}" fill="${this.fillStyle}" text-anchor="${anchor}" dominant-baseline="${base}" font-size="${size}"${bold}>${escaped(text)}</text>`);
  }
  setLineDash(dash: number[]): void {
    this.dash = dash;
  }
  save(): void {
    this.kept.push([...this.transform]);
  }
  restore(): void {
    this.transform = this.kept.pop() ?? [];
  }
  translate(x: number, y: number): void {
    this.transform.push(`translate(${r(x)} ${r(y)})`);
  }
  rotate(angle: number): void {
    this.transform.push(`rotate(${r((angle * 180) / Math.PI)})`);
  }
  cells(x: number, y: number, w: number, h: number, rows: number, columns: number, colours: Uint8Array, background: string): void {
    const at = (i: number) => "#" + [0, 1, 2].map((c) => colours[3 * i + c].toString(16).padStart(2, "0")).join("");
    const cw = w / columns;
    const ch = h / rows;
    for (let t = 0; t < rows; t++)
      for (let s = 0; s < columns; ) {
        const colour = at(t * columns + s);
        let end = s + 1;
        while (end < columns && at(t * columns + end) === colour) end++;
        if (colour !== background) this.add(`<rect x="${r(x + s * cw)}" y="${r(y + t * ch)}" width="${r((end - s) * cw)}" height="${r(ch)}" fill="${colour}" shape-rendering="crispEdges"/>`);
        s = end;
      }
  }
  file(drawing: Drawing, theme: Theme, title: string, desc: string): string {
    const size = `width="${r(drawing.width)}" height="${r(drawing.height)}" viewBox="0 0 ${r(drawing.width)} ${r(drawing.height)}"`;
    const head = `<svg xmlns="http://www.w3.org/2000/svg" ${size} role="img" font-family="system-ui, sans-serif">`;
    const back = `<rect width="100%" height="100%" fill="${theme.background}"/>`;
    return `${head}<title>${escaped(title)}</title><desc>${escaped(desc)}</desc>${back}${this.out.join("")}</svg>\n`;
  }
}

export function svg(drawing: Drawing, theme: Theme, title: string, desc = ""): string {
  const pen = new SvgPen();
  drawing.paint(pen, theme);
  return pen.file(drawing, theme, title, desc);
}

/** Paint on a canvas of the right number of pixels. */
export function onCanvas(canvas: HTMLCanvasElement, drawing: Drawing, theme: Theme, ratio = globalThis.devicePixelRatio || 1): void {
  // Browsers refuse canvases over some 16,000 pixels in one direction.
  const fit = Math.min(ratio, 16000 / Math.max(drawing.width, drawing.height, 1));
  canvas.width = Math.max(1, Math.round(drawing.width * fit));
  canvas.height = Math.max(1, Math.round(drawing.height * fit));
  canvas.style.width = `${drawing.width}px`;
  canvas.style.height = `${drawing.height}px`;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  pen.scale(fit, fit);
  pen.fillStyle = theme.background;
  pen.fillRect(0, 0, drawing.width, drawing.height);
  drawing.paint(pen, theme);
}

export function png(drawing: Drawing, theme: Theme): Promise<Blob | null> {
  const canvas = document.createElement("canvas");
  onCanvas(canvas, drawing, theme, 2);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
