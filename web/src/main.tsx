import { render } from "preact";
import "./figures/figures.css";
import { Shell } from "./shell";
import "./studio.css";

render(<Shell />, document.getElementById("app")!);
