// An image for a model that reads one: a text that is drawn, one's own handwriting, or a file; and what the model reads in it, or its labels.
import { useEffect, useRef, useState } from "preact/hooks";
import { startText, type Caps } from "../api";
import { unpackAll, type FigureJson } from "../figures";
import { FigureView } from "../figures/FigureView";
import { t } from "../strings";
import { Busy, CopyPython, Go, Panel, Segments, TextField, useDraft, Warnings, Wrong } from "../ui";
import { choice, place, set } from "../url";
import { useRunner } from "./play";
import { Result } from "./result";

const WAYS = ["text", "hand", "file"];
const [WIDE, HIGH, PEN] = [576, 96, 11]; // of the sheet to write on, and the width of a stroke
const LONGEST = 768; // pixels of a side of a file that are sent

export function ImageDesk({ caps, task }: { caps: Caps; task: string }) {
  const way = choice("way", WAYS) ?? WAYS[0];
  const text = place.value.params.x ?? startText(caps);
  const [draft, setDraft] = useDraft(text);
  const [image, setImage] = useState("");
  const runner = useRunner();
  const start = (inputs: Record<string, string>) => {
    const body = { model: caps.id, task, inputs, parameters: {}, stream: false };
    void runner.run("/api/play", body, () => {});
  };
  const send = () => {
    if (way === "text") set({ x: draft, go: true });
    if (way === "text" ? draft.trim() : image) start(way === "text" ? { text: draft } : { image });
  };
  useEffect(() => {
    if (place.value.params.go && way === "text") start({ text }); // a link to an answer gives the answer
    return runner.stop;
  }, []);
  const choose = (v: string) => {
    setImage("");
    runner.clear();
    set({ way: v === "text" ? null : v, go: null });
  };
  return (
    <>
      <form class="panel stack" onSubmit={(e) => { e.preventDefault(); send(); }}>
        <Segments label={t("play.image.way")} value={way} onChange={choose} choices={WAYS.map((v) => ({ value: v, label: t(`play.image.ways.${v}`) }))} />
        {way === "text" ? <TextField label={t("play.image.text")} value={draft} onInput={setDraft} rows={1} required send={send} first /> : null}
        {way === "hand" ? <Sheet onDrawn={setImage} /> : null}
        {way === "file" ? <OpenFile onOpened={setImage} /> : null}
        <div class="row"><button type="submit" class="primary" disabled={runner.busy || (way !== "text" && !image)}>{t("play.image.read")}</button></div>
      </form>
      {runner.error ? <Wrong error={runner.error} /> : null}
      {runner.busy ? <Busy cancel={runner.stop} /> : null}
      {runner.answer ? (
        <Panel title={t("play.answer")} part="answer">
          <Warnings of={runner.answer.warnings} />
          <Result task={task} answer={runner.answer} values={{}} writing={false} />
          {runner.answer.figure ? <Looked figure={runner.answer.figure} /> : null}
          {way === "text" ? <div class="row"><span class="muted">{t("play.inside")}</span>{["attention", "predict", "figures"].map((page) => <Go key={page} to={page}>{t(`pages.${page}`)}</Go>)}</div> : null}
          <CopyPython python={runner.answer.python} />
        </Panel>
      ) : null}
    </>
  );
}

/** Where the model looked, in each layer or while it wrote each character. */
function Looked({ figure }: { figure: FigureJson }) {
  const [data, setData] = useState<Record<string, unknown>>();
  useEffect(() => {
    let current = true;
    void unpackAll(figure.data).then((found) => current && setData(found as Record<string, unknown>));
    return () => { current = false; };
  }, [figure]);
  return data ? <FigureView figure={{ ...figure, data }} /> : null;
}

/** A sheet to write on by finger, pen or mouse. */
function Sheet({ onDrawn }: { onDrawn: (image: string) => void }) {
  const sheet = useRef<HTMLCanvasElement>(null);
  const pen = useRef(false);
  const clear = () => {
    const context = sheet.current?.getContext("2d");
    if (!context) return;
    context.fillStyle = "#fff";
    context.fillRect(0, 0, WIDE, HIGH);
    onDrawn("");
  };
  useEffect(clear, []);
  const at = (e: PointerEvent): [number, number] => {
    const box = sheet.current!.getBoundingClientRect();
    return [((e.clientX - box.left) / box.width) * WIDE, ((e.clientY - box.top) / box.height) * HIGH];
  };
  const stroke = (e: PointerEvent, begins: boolean) => {
    const context = sheet.current?.getContext("2d");
    if (!context || !(begins || pen.current)) return;
    const [x, y] = at(e);
    if (begins) {
      pen.current = true;
      sheet.current!.setPointerCapture(e.pointerId);
      context.lineWidth = PEN;
      context.lineCap = context.lineJoin = "round";
      context.strokeStyle = "#000";
      context.beginPath();
      context.moveTo(x, y);
    }
    context.lineTo(x, y);
    context.stroke();
  };
  const lift = () => {
    if (pen.current && sheet.current) onDrawn(sheet.current.toDataURL("image/png"));
    pen.current = false;
  };
  return (
    <div class="stack tight">
      <canvas ref={sheet} width={WIDE} height={HIGH} class="sheet" role="img" aria-label={t("play.image.sheet")} data-sheet
        onPointerDown={(e) => stroke(e, true)} onPointerMove={(e) => stroke(e, false)} onPointerUp={lift} onPointerCancel={lift} />
      <p class="muted small">{t("play.image.handNote")}</p>
      <div class="row"><button type="button" onClick={clear}>{t("play.image.clear")}</button></div>
    </div>
  );
}

/** A file from the visitor's disk; a large one is made smaller before it is sent. It goes to this machine's server only. */
function OpenFile({ onOpened }: { onOpened: (image: string) => void }) {
  const [shown, setShown] = useState("");
  const [wrong, setWrong] = useState("");
  const open = async (file: File | undefined) => {
    onOpened("");
    setShown("");
    setWrong("");
    if (!file) return;
    try {
      const picture = await createImageBitmap(file);
      const scale = Math.min(1, LONGEST / Math.max(picture.width, picture.height));
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [Math.max(1, Math.round(picture.width * scale)), Math.max(1, Math.round(picture.height * scale))];
      const context = canvas.getContext("2d")!;
      context.fillStyle = "#fff";
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.drawImage(picture, 0, 0, canvas.width, canvas.height);
      const data = canvas.toDataURL("image/jpeg", 0.95);
      setShown(data);
      onOpened(data);
    } catch {
      setWrong(t("play.image.wrong", { file: file.name }));
    }
  };
  return (
    <div class="stack tight">
      <label class="field">{t("play.image.file")} <input type="file" accept="image/*" onChange={(e) => void open(e.currentTarget.files?.[0])} data-file /></label>
      {wrong ? <p role="alert">{wrong}</p> : null}
      {shown ? <img src={shown} class="opened" alt={t("play.image.opened")} /> : null}
      <p class="muted small">{t("play.image.fileNote")}</p>
    </div>
  );
}
