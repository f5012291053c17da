import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, gzipSync } from "node:zlib";
import react from "@vitejs/plugin-react";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

const server = process.env.CHATD_URL ?? "http://127.0.0.1:7870";
const page = fileURLToPath(new URL("../src/chatd/page", import.meta.url));
const compressed = new Set([".css", ".html", ".js", ".svg", ".webmanifest"]);
const smallestCompressedBytes = 256;

/** The server sends `<file>.br` or `<file>.gz` to browsers that take it; it compresses nothing itself. */
function compressFiles(): Plugin {
  return {
    name: "compress-files",
    apply: "build",
    closeBundle() {
      for (const entry of readdirSync(page, { recursive: true, withFileTypes: true })) {
        const path = join(entry.parentPath, entry.name);
        if (!entry.isFile() || !compressed.has(extname(entry.name))) continue;
        const content = readFileSync(path);
        if (content.length < smallestCompressedBytes) continue;
        writeFileSync(`${path}.gz`, gzipSync(content, { level: 9 }));
        writeFileSync(`${path}.br`, brotliCompressSync(content));
      }
    },
  };
}

const adoptedStyle = fileURLToPath(new URL("./src/styles/adopted-style.ts", import.meta.url));
const stylingLibraries = /node_modules\/(sonner|react-style-singleton|@xterm\/xterm)\//;

/** Libraries that make style elements at run time, which the content policy refuses. */
function adoptStyles(): Plugin {
  return {
    name: "adopt-styles",
    apply: "build",
    transform(code, id) {
      if (!stylingLibraries.test(id) || !/\.m?js$/.test(id)) return null;
      const adopted = code.replaceAll(/[\w.]+\.createElement\((["'`])style\1\)/g, "createAdoptedStyle()");
      if (adopted === code) return null;
      return { code: `import { createAdoptedStyle } from ${JSON.stringify(adoptedStyle)};\n${adopted}`, map: null };
    },
  };
}

/** noVNC waits at its top level to learn whether the browser decodes H.264, which no X server of ours sends. A wait there cuts the first load in pieces. */
function dropVideoTrial(): Plugin {
  return {
    name: "drop-video-trial",
    transform(code, id) {
      if (!id.includes("@novnc/novnc/core/util/browser.js")) return null;
      return { code: code.replace("await _checkWebCodecsH264DecodeSupport()", "false"), map: null };
    },
  };
}

/** KaTeX: of three formats of each font the one that every browser reads, and styles that the content policy allows. */
function trimKatex(): Plugin {
  return {
    name: "trim-katex",
    enforce: "pre",
    transform(code, id) {
      if (/katex\/dist\/katex\.css/.test(id)) return { code: code.replaceAll(/, ?url\([^)]*\.(?:woff|ttf)\) format\([^)]*\)/g, ""), map: null };
      if (!/katex\/dist\/katex\.mjs/.test(id)) return null;
      const allowed = "attr === 'style' ? (node.style.cssText = this.attributes[attr]) : node.setAttribute(attr, this.attributes[attr])";
      return { code: code.replaceAll("node.setAttribute(attr, this.attributes[attr])", allowed), map: null };
    },
  };
}

/** Icons of lucide have keys of six random letters, which do not compress; their order is key enough. */
function shortenIcons(): Plugin {
  return {
    name: "shorten-icons",
    apply: "build",
    transform(code, id) {
      if (!/lucide-react\/dist\/esm\/icons\//.test(id)) return null;
      let key = 0;
      return { code: code.replaceAll(/key: "\w+"/g, () => `key: ${(key += 1)}`), map: null };
    },
  };
}

const everywhere = [
  /node_modules\/(?:react|react-dom|scheduler|use-sync-external-store|@tanstack\/(?:react-query|query-core)|wouter)\//,
  /lucide-react\/dist\/esm\/(?!icons)/,
  /lucide-react\/dist\/esm\/icons\/(?:book-open|check|circle-question-mark|clock|copy|cpu|file-text|globe|image|message-square|paperclip|pause|play|square|undo-2|unplug|x)\./,
  /src\/(?:api|chat-state|connection|components\/(?!dialog|field|lightbox|popups|shortcuts)|platform\/(?!toaster)|app\/(?:columns|sidebar|top-bar))/,
];

export default defineConfig({
  plugins: [react(), adoptStyles(), dropVideoTrial(), trimKatex(), shortenIcons(), compressFiles()],
  base: "/",
  resolve: { alias: { "@": fileURLToPath(new URL("./src", import.meta.url)) } },
  build: {
    outDir: page,
    emptyOutDir: true,
    target: "es2023",
    assetsDir: "assets",
    // The content policy allows no data: URLs but for images.
    assetsInlineLimit: 0,
    // A screen that is loaded later finds its scripts by their imports: their names do not stand in the first load.
    modulePreload: { polyfill: false, resolveDependencies: (_, files, { hostType }) => files.filter((file) => hostType === "html" || file.endsWith(".css")) },
    // What every screen needs is one file: it is smaller than its parts. So is what shows messages, texts and code.
    rolldownOptions: {
      input: ["index.html", "diagram.html", "shared.html"],
      // A part of `components` that nobody has imported by name is not loaded.
      treeshake: { moduleSideEffects: (id) => !/\/src\/components\/\w+\.tsx?$/.test(id) },
      output: {
        codeSplitting: {
          groups: [
            // Menus, popovers, dialogs: loaded soon after the page.
            {
              name: "popups",
              test: /node_modules\/(?:@radix-ui|@floating-ui|react-remove-scroll|react-remove-scroll-bar|react-style-singleton|use-callback-ref|use-sidecar|aria-hidden)\/|src\/components\/(?:dialog|field|popups)\./,
              priority: 1,
            },
            { name: "base", test: (id) => everywhere.some((one) => one.test(id)), priority: 3 },
            {
              name: "timeline",
              test: /src\/(?:text\/(?!compare-lines|computer-actions|diagram-frame|diagrams|git-diff|highlight|katex)|timeline\/(?!list\/print-sheet|text-dialog|tools\/(?:computer|workspace)-card|views\/version-controls))/,
            },
          ],
        },
      },
    },
  },
  server: { proxy: { "/api": { target: server, ws: true }, "/sign-in": server, "/docs": server, "/lite": server } },
  test: {
    environment: "happy-dom",
    include: ["src/**/*.test.{ts,tsx}"],
    setupFiles: ["./testing-setup.ts"],
    restoreMocks: true,
    unstubGlobals: true,
    // The simulated document and React are loaded once per thread and not once per file: a quarter of the time.
    pool: "threads",
    isolate: false,
    // A test that hangs must fail; one of a few seconds must not, on a busy machine.
    testTimeout: 60_000,
  },
});
