// What the figures say, from one file; {names} are filled in.
import strings from "./strings.json";

export type Key = keyof typeof strings;

export function say(key: Key, values: Record<string, string | number> = {}): string {
  return strings[key].replace(/\{(\w+)\}/g, (_, name: string) => String(values[name] ?? ""));
}
