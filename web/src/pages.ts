// The pages, and for which models each has something to show. A capability decides, never a model's name.
import type { ComponentType } from "preact";
import type { Caps } from "./api";
import { AttentionPage } from "./pages/attention";
import { ComparePage } from "./pages/compare";
import { ExercisesPage } from "./pages/exercises";
import { FiguresPage } from "./pages/figures";
import { GlossaryPage } from "./pages/glossary";
import { HomePage } from "./pages/home";
import { LayersPage } from "./pages/layers";
import { PlayPage } from "./pages/play";
import { PositionsPage } from "./pages/positions";
import { PredictPage } from "./pages/predict";
import { ReportsPage } from "./pages/reports";
import { SpacePage } from "./pages/space";
import { StatesPage } from "./pages/states";
import { StepsPage } from "./pages/steps";
import { TokensPage } from "./pages/tokens";
import { TourPage } from "./pages/tour";
import { TrainPage } from "./pages/train";

type Free = { free: true; view: ComponentType<{ caps: Caps | undefined }> };
type Bound = { free?: false; view: ComponentType<{ caps: Caps }> };

export const GROUPS: Record<string, string[]> = {
  start: ["home", "tour", "play", "exercises", "glossary"],
  inside: ["tokens", "attention", "steps", "predict", "layers", "states", "positions", "space", "figures"],
  time: ["train", "compare", "reports"],
};

/** `free` pages stand without a model. */
export const PAGES: Record<string, Free | Bound> = {
  home: { free: true, view: HomePage },
  tour: { free: true, view: TourPage },
  exercises: { free: true, view: ExercisesPage },
  glossary: { free: true, view: GlossaryPage },
  play: { view: PlayPage },
  tokens: { view: TokensPage },
  attention: { view: AttentionPage },
  steps: { view: StepsPage },
  predict: { view: PredictPage },
  layers: { view: LayersPage },
  states: { view: StatesPage },
  positions: { view: PositionsPage },
  space: { view: SpacePage },
  figures: { view: FiguresPage },
  train: { free: true, view: TrainPage },
  compare: { free: true, view: ComparePage },
  reports: { free: true, view: ReportsPage },
};

const NEEDS: Record<string, (caps: Caps) => boolean> = {
  tokens: (c) => c.tokenizer !== null || c.kind === "vectors",
  attention: (c) => c.attention.length > 0 || c.recurrent.length > 0,
  steps: (c) => c.topics.length > 0,
  predict: (c) => c.kind !== "vectors" && c.predicts !== null && c.predicts !== "vectors",
  layers: (c) => c.kind !== "vectors",
  states: (c) => c.kind !== "vectors",
  space: (c) => c.embeddings.length > 0 || c.kind === "vectors",
};

export function allows(page: string, caps: Caps): boolean {
  return NEEDS[page]?.(caps) ?? true;
}
