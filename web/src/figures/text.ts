// Tokens and numbers as they are shown, and tables of them.

const CONTROL = /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** A token as it is shown: spaces as ·, a newline as ⏎, control and direction characters by their code. */
export function shown(token: string): string {
  const visible = token
    .replace(/^[Ġ▁ ]+/, (s) => "·".repeat(s.length))
    .replace(/Ċ|\n/g, "⏎")
    .replace(/\t/g, "⇥")
    .replace(/Ġ|▁/g, "·")
    .replace(/<\/w>$/, "")
    .replace(CONTROL, (c) => `<${c.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}>`);
  return visible === "" ? "∅" : visible;
}

/** A token cut to so many letters. */
export function short(token: string, letters = 14): string {
  const whole = [...shown(token.length > 400 ? token.slice(0, 400) : token)];
  return whole.length > letters ? whole.slice(0, letters - 1).join("") + "…" : whole.join("");
}

/** Exact numbers short (1, 0.5), others with all digits (0.3333), small ones with a power (1e-5). */
export function number(value: number, digits = 4): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value < 0 ? "−∞" : "∞";
  if (Math.abs(value) < 1e-12) return "0";
  const small = Math.abs(value) < 10 ** (1 - digits);
  const said = small ? value.toExponential(digits - 1) : value.toFixed(digits);
  const exact = Math.abs(Number(said) - value) <= 1e-12 * (small ? Math.abs(value) : Math.max(1, Math.abs(value)));
  let [mantissa, power] = said.split("e") as [string, string | undefined];
  if (exact && mantissa.includes(".")) mantissa = mantissa.replace(/0+$/, "").replace(/\.$/, "");
  return (power ? `${mantissa}e${Number(power)}` : mantissa).replace("-", "−").replace("e−", "e-");
}

/** A number with so many significant digits; whole numbers and exact ones as they are, very small and large ones with a power. */
export function significant(value: number, digits = 4): string {
  if (!Number.isFinite(value) || Math.abs(value) < 1e-12) return number(value, digits);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value).replace("-", "−");
  const size = Math.floor(Math.log10(Math.abs(value)));
  const said = size < -4 || size > 8 ? value.toExponential(digits - 1) : value.toFixed(Math.max(0, digits - 1 - size));
  const exact = Math.abs(Number(said) - value) <= 1e-12 * Math.abs(value);
  const [mantissa, power] = said.split("e");
  const short = exact && mantissa.includes(".") ? mantissa.replace(/0+$/, "").replace(/\.$/, "") : mantissa;
  return (power ? `${short}e${Number(power)}` : short).replace("-", "−").replace("e−", "e-");
}

/** A number in few letters: 0.41, 12.3, 1.5k. */
export function brief(value: number): string {
  if (!Number.isFinite(value)) return number(value);
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 0.001) return value.toExponential(0).replace("-", size === value ? "-" : "−");
  const said = size >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M` : size >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k` : size >= 100 ? value.toFixed(0) : `${+value.toPrecision(size < 1 ? 2 : 3)}`;
  return said.replace(/^-/, "−");
}

/** A share in per cent. What is not quite all is never called 100 %, nor what is not quite nothing 0. */
export function percent(share: number): string {
  const of100 = 100 * share;
  if (of100 === 0 || of100 === 100) return of100 ? "100 %" : "0";
  if (of100 >= 99.995) return of100 > 100 ? "100 %" : "> 99.99 %";
  if (of100 >= 99.95 || of100 < 10) return of100 < 0.001 ? "< 0.001 %" : of100 < 0.01 ? `${of100.toFixed(3)} %` : `${of100.toFixed(2)} %`;
  return `${of100.toFixed(1)} %`;
}

/** Rows as a CSV file (RFC 4180). */
export function csv(rows: readonly (readonly (string | number | null)[])[]): string {
  const field = (v: string | number | null) => {
    const said = v === null ? "" : String(v);
    return /[",\r\n]/.test(said) ? `"${said.replaceAll('"', '""')}"` : said;
  };
  return rows.map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";
}
