// What is said without being looked at (the live region), and what is said in passing (a toast).
import { signal } from "@preact/signals";

export const spoken = signal("");
export const toast = signal("");

let timer = 0;

export function say(text: string): void {
  spoken.value = text;
}

export function tell(text: string): void {
  toast.value = text;
  say(text);
  window.clearTimeout(timer);
  timer = window.setTimeout(() => (toast.value = ""), 2500);
}
