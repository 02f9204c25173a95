// Every word of the page stands in strings.json, so that a translation is one file.
import strings from "./strings.json";

type Tree = { [key: string]: string | Tree };

/** The string at "page.name", with {name} replaced. A key that is missing shows itself, and a test finds it. */
export function t(key: string, values: Record<string, string | number> = {}): string {
  let node: string | Tree | undefined = strings as Tree;
  for (const part of key.split(".")) node = typeof node === "object" ? node[part] : undefined;
  if (typeof node !== "string") return key;
  return node.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}
