// The picture of one text in a model: what is asked of the server, the form to ask with, and links to the pages of its stages.
import { useState } from "preact/hooks";
import { useModels } from "./api";
import { ModelView, unpackAll, type FigureJson, type ModelData, type Stage } from "./figures";
import { call, get, queried } from "./http";
import { useResource, type Resource } from "./resource";
import { t } from "./strings";
import { Await, Select, TextField, useDraft } from "./ui";
import { go, link, set, str, target, whole, type Patch } from "./url";

export type Drawn = FigureJson & { path: string; data: Record<string, unknown> & ModelData };

/** What the address asks for: without a text, the first picture of the model. */
function request(model: string): Record<string, string | undefined> {
  const text = str("x");
  const of = text ? { text, comparison: str("x2"), layer: str("at"), head: str("h"), row: str("q") } : {};
  return { model, ...of };
}

/** The picture that the address asks for, and how it was asked for. */
export function usePicture(model: string, wanted = true): { drawn: Resource<Drawn>; asked: ReturnType<typeof request> } {
  const asked = request(model);
  const path = `/api/picture${queried(asked)}`;
  const drawn = useResource<Drawn>(wanted ? `picture ${path}` : null, async (signal) => {
    const figure = await get<FigureJson>(path, {}, signal);
    return { ...figure, path, data: await unpackAll(figure.data) } as Drawn;
  });
  return { drawn, asked };
}

/** The first screen: the picture and the form; without a model it is of the one that the studio begins with. */
export function FirstPicture({ model }: { model: string }) {
  const { drawn, asked } = usePicture(model);
  return (
    <section class="panel picture" aria-label={t("picture.label")}>
      <Await of={drawn} wait={t("picture.wait")}>{(figure) => (
        <>
          <Shown key={figure.path} figure={figure} asked={asked} />
          <AskPicture model={figure.data.name} text={figure.data.texts[0]} />
        </>
      )}</Await>
    </section>
  );
}

/** The picture, which changes its text and its row by itself; the address follows when the change is drawn. */
function Shown({ figure, asked }: { figure: Drawn; asked: ReturnType<typeof request> }) {
  const { texts, name, pictures: [picture] } = figure.data;
  const [first, second] = texts;
  const rows = picture.row_side === "text" ? 1 : picture[picture.row_side].length;
  const [text, setText] = useState(second ? whole("t", 0, 0, 1) : 0);
  const [row, setRow] = useState(str("r") ? whole("r", 0, 0, rows - 1) : picture.row);
  const follows = (patch: Patch) => void setTimeout(() => set(patch, "replace"));
  const html = async () => (await call(`/api/picture${queried({ ...asked, format: "html" })}`)).text();
  return (
    <ModelView figure={figure} exports={{ html }} linkTo={(stage, at, of) => follow(name, texts[of] ?? first, stage, at)}
      text={text} onText={(i) => { setText(i); follows({ t: i || null }); }} row={row} onRow={(r) => { setRow(r); follows({ r }); }}
      onHead={(at, h, q) => set({ x: first, x2: second, at, h, q, r: null }, "replace")} />
  );
}

/** The page of a stage, set to the model, the text, the layer, the head and the row. */
export function follow(model: string, text: string, stage: Stage, row: number) {
  if (!stage.page) return null;
  const patch: Patch = { m: model, x: text, y: null, ...stage.params, ...(stage.row_param ? { [stage.row_param]: row } : {}) };
  return {
    href: link(stage.page, patch),
    onClick: (e: MouseEvent) => {
      if (e.metaKey || e.ctrlKey || e.shiftKey || e.button !== 0) return;
      e.preventDefault();
      go(target(stage.page, patch));
    },
  };
}

/** Whether the model of the address reads sentences, or is the one to begin with; word vectors have no picture. */
export function useReads(): boolean {
  const models = useModels();
  return !str("m") || Boolean(models.data?.models.some((m) => m.id === str("m") && m.kind !== "vectors" && m.error === null));
}

/** One's own sentence, and the model that reads it. */
export function AskPicture({ model, text }: { model: string; text: string }) {
  const models = useModels();
  const [draft, setDraft] = useDraft(text);
  const send = () => draft.trim() && set({ x: draft, x2: null, at: null, h: null, q: null, r: null, t: null, s: null });
  const usable = (models.data?.models ?? []).filter((m) => m.error === null && m.kind !== "vectors");
  return (
    <form class="row ask-picture" onSubmit={(e) => { e.preventDefault(); send(); }}>
      <TextField label={t("picture.own")} value={draft} onInput={setDraft} rows={1} required send={send} first />
      <Select label={t("shell.model")} value={model} onChange={(m) => set({ m, at: null, h: null, q: null, r: null, t: null, s: null, x: str("x") || null, x2: null })} choices={usable.map((m) => ({ value: m.id, label: m.id }))} />
      <button type="submit" class="primary">{t("picture.show")}</button>
    </form>
  );
}
