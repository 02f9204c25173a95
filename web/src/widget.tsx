import { render } from "preact";

export default {
  render({ el }: { el: HTMLElement }) {
    render(<p>heedful</p>, el);
  },
};
