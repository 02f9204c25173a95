// A card that speaks of a part of the page and stays in view: the page scrolls to that part, when it is there, and marks it.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { pending } from "./resource";
import { t } from "./strings";

/** What is shown on most pages: the first figure, or an answer. */
export const SHOWN = "main .fig, main [data-part=answer]";

/** Wait for what a selector names, scroll to it below the card, and mark it. Tells whether it is there. */
function usePointing(key: string, selector: string, card: { current: HTMLElement | null }): boolean {
  const [there, setThere] = useState(false);
  useEffect(() => {
    let [taken, timer, marked] = [false, 0, null as HTMLElement | null];
    const leave = () => (taken = true); // who scrolls or types already is not moved
    setThere(false);
    const look = () => {
      const found = document.querySelector<HTMLElement>(selector);
      if (!found || pending.value > 0) {
        timer = window.setTimeout(look, 60);
        return;
      }
      marked = found.closest<HTMLElement>(".panel") ?? found;
      marked.classList.add("pointed");
      setThere(true);
      if (taken) return;
      const own = card.current;
      const top = own && getComputedStyle(own).position === "sticky" ? own.offsetHeight + parseFloat(getComputedStyle(own).top) : 0;
      window.scrollTo({ top: marked.getBoundingClientRect().top + window.scrollY - top - 12, behavior: window.matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    };
    timer = window.setTimeout(look, 60); // the page of a new address is drawn first
    for (const name of ["wheel", "touchmove", "keydown"]) window.addEventListener(name, leave, { passive: true });
    return () => {
      window.clearTimeout(timer);
      marked?.classList.remove("pointed");
      for (const name of ["wheel", "touchmove", "keydown"]) window.removeEventListener(name, leave);
    };
  }, [key, selector]);
  return there;
}

type GuideProps = { name: string; label: string; title: ComponentChildren; actions: ComponentChildren; selector?: string; children: ComponentChildren };

/** `name` tells one place from another: with a new one the card points anew. */
export function Guide({ name, label, title, actions, selector = SHOWN, children }: GuideProps) {
  const card = useRef<HTMLElement>(null);
  const there = usePointing(name, selector, card);
  return (
    <section ref={card} class="panel stack tight guide" aria-label={label} data-guide={name} data-there={there}>
      <div class="row between">
        <h2>{title}</h2>
        <div class="row">{actions}</div>
      </div>
      {children}
      {there ? null : <p class="busy small" role="status">{t("guide.waiting")}</p>}
    </section>
  );
}
