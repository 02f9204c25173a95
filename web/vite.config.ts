// Two bundles, each one file: the studio's page, and the widget that notebooks and one-file HTML carry.
import { readFileSync } from "node:fs";
import { defineConfig } from "vitest/config";

// A figure saved as one file is passed on alone, so it carries what the licences of its packages ask for.
const licences = readFileSync(new URL("public/licences.txt", import.meta.url), "utf-8");

const entries = {
  studio: { input: "src/main.tsx", out: "../src/heedful/classroom/studio/static" },
  widget: { input: "src/widget.tsx", out: "../src/heedful/classroom/figures/static" },
};

export default defineConfig(({ mode }) => {
  const { input, out } = mode === "widget" ? entries.widget : entries.studio;
  return {
    oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
    define: { "process.env.NODE_ENV": '"production"' },
    publicDir: mode === "studio" ? "public" : false,
    build: {
      outDir: out,
      emptyOutDir: false, // files of others may stand beside
      target: "es2022",
      sourcemap: false,
      minify: "oxc",
      modulePreload: false,
      cssCodeSplit: false,
      rolldownOptions: {
        input,
        preserveEntrySignatures: "strict" as const, // the widget's default export is what a notebook calls
        output: {
          codeSplitting: false,
          postBanner: mode === "widget" ? `/*!\n${licences}*/` : "",
          entryFileNames: `${mode}.js`,
          assetFileNames: (asset: { names: string[] }) =>
            asset.names[0]?.endsWith(".css") ? `${mode}.css` : "[name][extname]",
        },
      },
    },
    test: { environment: "jsdom", include: ["{src,tests}/**/*.test.{ts,tsx}"] },
  };
});
