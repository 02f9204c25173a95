// Formulas, written in one line of plain text and typeset as MathML. This is the only place that does it.
//
//   <Formula of="softmax(q k^T / sqrt(d_k)) V" />        inside a line
//   <Formula of="h_t = tanh(W x_t + U h_{t-1})" block />   on a line of its own
//   mathml("x_i")                                          the same as a string, for pages and tests
//
// The language, from the loosest to the tightest:
//   a = b   a ≈ b   a ≤ b   a → b   a := b   a, b   a | b   relations and lists
//   a + b   a - b   -a                              sums; − is the same as -
//   a b   a · b   a × b   a ⊙ b                     products; * is ·
//   a b / c                                         a fraction: all factors on the left over ONE factor on the right
//   Σ_i a b   Π a   ∂L                              sums, products and differentials take the product behind them
//   x_i   x_{t-1}   x^2   q k^T   kᵀ   x²   x′         what is below and above; more than one sign in { }
//   sqrt(x)   √x                                    roots
//   f(x)   softmax(x)   (a + b)   [a b]             calls and brackets; { } groups without being seen
//   x   d_k   W   sigma   alpha                     one letter is italic, a word upright, Greek letters by name
//   "one-hot"                                       words that are no mathematics
// What does not follow these rules is shown as it was written.

type Token = { kind: "number" | "name" | "words" | "sign"; text: string };

const GREEK: Record<string, string> = {
  alpha: "α", beta: "β", gamma: "γ", delta: "δ", epsilon: "ε", eta: "η", theta: "θ", lambda: "λ", mu: "μ", pi: "π", sigma: "σ", tau: "τ",
  phi: "φ", omega: "ω", Delta: "Δ", Sigma: "Σ", sum: "Σ", prod: "Π", infty: "∞", sqrt: "√", partial: "∂",
};
const SUPER: Record<string, string> = { "ᵀ": "⊤", "²": "2", "³": "3", "′": "′", "⁻": "−", "¹": "1" };
const SUB: Record<string, string> = { "₀": "0", "₁": "1", "₂": "2", "₃": "3", "₄": "4", "ᵢ": "i", "ⱼ": "j", "ₜ": "t" };
const RELATIONS = ["=", "≈", "≤", "≥", "<", ">", "→", "≔", "∈", "≠", ",", ";", ":", "|", "∝"];
const PRODUCTS = ["·", "×", "⊙", "⊗"];
const BIG = ["Σ", "Π"];
const CLOSING: Record<string, string> = { "(": ")", "[": "]", "{": "}", "‖": "‖", "⌈": "⌉", "⌊": "⌋" };
const TOKEN = /\s*(?:(\d+(?:[.,]\d+)*(?:e[-−]?\d+)?|\.\d+)|([A-Za-zα-ωΑ-ΡΤ-Ωℝℓ]\p{M}?(?:[A-Za-z]\p{M}?)*)|"([^"]*)"|(:=|[^\sA-Za-z0-9"]))/uy;

const escaped = (text: string) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
const operator = (text: string, more = "") => `<mo${more}>${escaped(text)}</mo>`;
const row = (parts: string[]) => (parts.length === 1 ? parts[0] : `<mrow>${parts.join("")}</mrow>`);

function tokens(formula: string): Token[] {
  const found: Token[] = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < formula.trimEnd().length) {
    const match = TOKEN.exec(formula);
    if (!match) throw new SyntaxError(`no formula: ${formula}`);
    const [, digits, name, words, sign] = match;
    if (digits !== undefined) found.push({ kind: "number", text: digits });
    else if (name !== undefined) found.push(GREEK[name] && "ΣΠ√∂".includes(GREEK[name]) ? { kind: "sign", text: GREEK[name] } : { kind: "name", text: GREEK[name] ?? name });
    else if (words !== undefined) found.push({ kind: "words", text: words });
    else found.push({ kind: "sign", text: sign === "−" ? "-" : sign === "*" ? "·" : sign === ":=" ? "≔" : sign });
  }
  return found;
}

/** A formula read from left to right; each method returns the MathML of what it read. */
class Parser {
  private at = 0;
  private inNorm = false; // ‖ opens outside and closes inside
  constructor(private readonly tokens: Token[]) {}

  whole(): string {
    const found = this.relations();
    if (this.at < this.tokens.length) throw new SyntaxError(`unexpected ${this.tokens[this.at].text}`);
    return found;
  }

  private sign(...texts: string[]): string | null {
    const next = this.tokens[this.at];
    return next?.kind === "sign" && texts.includes(next.text) ? next.text : null;
  }

  private take(text: string): void {
    if (!this.sign(text)) throw new SyntaxError(`expected ${text}`);
    this.at++;
  }

  private relations(): string {
    const parts = [this.sum()];
    for (let sign = this.sign(...RELATIONS); sign; sign = this.sign(...RELATIONS)) {
      this.at++;
      parts.push(operator(sign, sign === "," || sign === ":" ? ' lspace="0" rspace="0.4em"' : ""));
      if (this.begins() || this.sign("-", "+")) parts.push(this.sum());
    }
    return row(parts);
  }

  private sum(): string {
    const parts: string[] = [];
    if (this.sign("-", "+")) parts.push(operator(this.tokens[this.at++].text === "-" ? "−" : "+", ' form="prefix"'));
    parts.push(this.product());
    for (let sign = this.sign("+", "-"); sign; sign = this.sign("+", "-")) {
      this.at++;
      parts.push(operator(sign === "-" ? "−" : "+"), this.product());
    }
    return row(parts);
  }

  private product(): string {
    let parts = [this.factor()];
    for (;;) {
      const sign = this.sign(...PRODUCTS, "/");
      if (sign === "/") {
        this.at++;
        parts = [`<mfrac>${row(parts)}${this.factor(true)}</mfrac>`];
      } else if (sign) {
        this.at++;
        parts.push(operator(sign), this.factor());
      } else if (this.begins()) {
        const words = [this.tokens[this.at - 1], this.tokens[this.at]].some((token) => token.kind === "words");
        parts.push(`<mspace width="${words ? "0.5em" : "0.17em"}"/>`, this.factor());
      } else return row(parts);
    }
  }

  /** Whether something that can be multiplied stands here. */
  private begins(): boolean {
    const next = this.tokens[this.at];
    return next !== undefined && (next.kind !== "sign" || ["(", "[", "{", "⌈", "⌊", ...(this.inNorm ? [] : ["‖"]), "√", "∂", "∇", "…", "∞", "∅", ...BIG].includes(next.text));
  }

  /** One factor with what stands above and below it. Brackets around all of a denominator are not shown. */
  private factor(bare = false): string {
    const start = this.tokens[this.at];
    let base = this.base(bare);
    let [below, above] = ["", ""];
    for (;;) {
      const next = this.tokens[this.at];
      if (next?.kind !== "sign") break;
      if (next.text === "_") below += this.script();
      else if (next.text === "^") above += this.script();
      else if (next.text in SUPER) { above += operator(SUPER[next.text]); this.at++; }
      else if (next.text in SUB) { below += `<mn>${SUB[next.text]}</mn>`; this.at++; }
      else break;
    }
    if (below && above) base = `<msubsup>${base}<mrow>${below}</mrow><mrow>${above}</mrow></msubsup>`;
    else if (below) base = `<msub>${base}<mrow>${below}</mrow></msub>`;
    else if (above) base = `<msup>${base}<mrow>${above}</mrow></msup>`;
    if (start?.kind === "sign" && BIG.includes(start.text)) return `<mrow>${base}${this.product()}</mrow>`;
    if (start?.kind === "name" && this.sign("(")) return `<mrow>${base}<mo>&#x2061;</mo>${this.factor()}</mrow>`;
    return base;
  }

  private script(): string {
    this.at++;
    const next = this.tokens[this.at];
    if (next?.kind === "name" && next.text === "T") {
      this.at++;
      return operator("⊤");
    }
    if (this.sign("-")) {
      this.at++;
      return operator("−", ' form="prefix"') + this.base();
    }
    return this.base(true);
  }

  private base(bare = false): string {
    const next = this.tokens[this.at++];
    if (!next) throw new SyntaxError("the formula ends too early");
    if (next.kind === "number") return `<mn>${escaped(next.text)}</mn>`;
    if (next.kind === "words") return `<mtext>${escaped(next.text)}</mtext>`;
    if (next.kind === "name") return `<mi${[...next.text.normalize("NFC")].length > 1 ? ' mathvariant="normal"' : ""}>${escaped(next.text)}</mi>`;
    if (next.text === "√") return `<msqrt>${this.factor(true)}</msqrt>`;
    if (next.text === "∂" || next.text === "∇") return `<mrow>${operator(next.text, ' form="prefix"')}${this.factor()}</mrow>`;
    if (BIG.includes(next.text)) return operator(next.text === "Σ" ? "∑" : "∏", ' largeop="false"');
    if (next.text in CLOSING) {
      if (next.text === "‖") this.inNorm = true;
      const inside = this.sign(CLOSING[next.text]) ? "" : this.relations();
      this.take(CLOSING[next.text]);
      if (next.text === "‖") this.inNorm = false;
      if (next.text === "{" || (bare && next.text === "(" && !this.sign("_", "^", "ᵀ", "²"))) return `<mrow>${inside}</mrow>`;
      return `<mrow>${operator(next.text, ' form="prefix"')}${inside}${operator(CLOSING[next.text], ' form="postfix"')}</mrow>`;
    }
    if (["…", "∞", "∅", "?"].includes(next.text)) return `<mi mathvariant="normal">${next.text}</mi>`;
    throw new SyntaxError(`unexpected ${next.text}`);
  }
}

/** A formula as a MathML element; throws a SyntaxError where the text is none. */
export function mathml(formula: string, block = false): string {
  const inside = new Parser(tokens(formula)).whole();
  return `<math xmlns="http://www.w3.org/1998/Math/MathML" display="${block ? "block" : "inline"}" alttext="${escaped(formula)}"><mstyle displaystyle="true">${inside}</mstyle></math>`;
}

export function Formula({ of, block = false }: { of: string; block?: boolean }) {
  let typeset: string | null = null;
  try {
    typeset = mathml(of, block);
  } catch {
    return <span class="fig-formula">{of}</span>;
  }
  return <span class="fig-formula" dangerouslySetInnerHTML={{ __html: typeset }} />;
}
