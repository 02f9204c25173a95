// Two bundles, each one file: the studio's page, and the widget that notebooks and one-file HTML carry.
import { defineConfig } from "vitest/config";

const entries = {
  studio: { input: "src/main.tsx", out: "../src/heedful/studio/static" },
  widget: { input: "src/widget.tsx", out: "../src/heedful/view/static" },
};

export default defineConfig(({ mode }) => {
  const { input, out } = mode === "widget" ? entries.widget : entries.studio;
  return {
    oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
    define: { "process.env.NODE_ENV": '"production"' }, // library mode leaves it in, and a page has no process
    publicDir: mode === "studio" ? "public" : false,
    build: {
      outDir: out,
      emptyOutDir: false, // files of others may stand beside
      target: "es2022",
      sourcemap: false,
      lib: { entry: input, formats: ["es" as const], fileName: () => `${mode}.js`, cssFileName: mode },
      rolldownOptions: { output: { codeSplitting: false } },
      minify: "oxc",
    },
    test: { environment: "jsdom", include: ["tests/**/*.test.ts", "tests/**/*.test.tsx", "src/**/*.test.ts", "src/**/*.test.tsx"] },
  };
});
