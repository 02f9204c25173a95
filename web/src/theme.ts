// Light, dark, or what the system says; kept between visits where the browser lets us.
import { effect, signal } from "@preact/signals";

export type Theme = "light" | "dark" | "system";

function stored(): Theme {
  try {
    const value = window.localStorage.getItem("heedful.theme");
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system";
  }
}

const system = window.matchMedia?.("(prefers-color-scheme: dark)");
const systemDark = signal(system?.matches ?? false);
system?.addEventListener?.("change", (event) => (systemDark.value = event.matches));

export const theme = signal<Theme>(stored());
export const dark = signal(false);

effect(() => {
  dark.value = theme.value === "dark" || (theme.value === "system" && systemDark.value);
  document.documentElement.dataset.theme = dark.value ? "dark" : "light";
});

export function toggle(): void {
  theme.value = dark.value ? "light" : "dark";
  try {
    window.localStorage.setItem("heedful.theme", theme.value);
  } catch {
    // a browser that keeps nothing still shows the chosen theme for this visit
  }
}
