import { render } from "preact";
import "./studio.css";

render(<main>heedful studio</main>, document.getElementById("app")!);
