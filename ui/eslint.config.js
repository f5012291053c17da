import js from "@eslint/js";
import hooks from "eslint-plugin-react-hooks";
import globals from "globals";
import ts from "typescript-eslint";

/** Each directory of src/ and those it may import, besides itself. Only src/app puts the areas together. */
const BASE = ["api", "chat-state", "platform"];
const SHARED = [...BASE, "components", "connection", "text"];
const MAY_IMPORT = {
  api: ["chat-state"],
  "chat-state": ["api"],
  platform: ["api", "chat-state"],
  components: BASE,
  connection: BASE,
  text: [...BASE, "components"],
  timeline: SHARED,
  composer: SHARED,
  panel: SHARED,
  settings: SHARED,
  demo: SHARED,
  shared: SHARED,
};
const TESTS = ["src/**/*.test.{ts,tsx}", "src/**/testing.{ts,tsx}"];
const perToken = { name: "@/connection", importNames: ["useChat"], message: "useChat renders per token: take useSettledChat or useChatSelector." };
const HTTPS_ONLY = "Browsers have it over https only: see src/platform/plain-http.ts.";
const areaRules = Object.entries(MAY_IMPORT).map(([area, allowed]) => ({
  files: [`src/${area}/**`],
  // Tests may use what another area's tests use.
  ignores: TESTS,
  rules: {
    "no-restricted-imports": [
      "error",
      {
        paths: area === "connection" ? [] : [perToken],
        patterns: [{ regex: `^@/(?!styles/|(?:${[area, ...allowed].join("|")})(?:/|$))`, message: `src/${area} imports only ${allowed.join(", ")}.` }],
      },
    ],
  },
}));

export default ts.config(
  { ignores: ["node_modules", "src/api/schema.d.ts", "public", "tools", "test-results", "playwright-report"] },
  js.configs.recommended,
  ...ts.configs.strictTypeChecked,
  ...ts.configs.stylisticTypeChecked,
  // Its rules compile each component: for those that are built, not for tests.
  { ...hooks.configs.flat["recommended-latest"], files: ["src/**"], ignores: TESTS },
  {
    languageOptions: {
      globals: globals.browser,
      parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname },
    },
    rules: {
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
      "no-restricted-properties": [
        "error",
        { object: "window", property: "open", message: "Use a link with rel=noreferrer." },
        ...["randomUUID", "subtle"].map((property) => ({ object: "crypto", property, message: HTTPS_ONLY })),
        ...["clipboard", "locks"].map((property) => ({ object: "navigator", property, message: HTTPS_ONLY })),
      ],
      "no-restricted-syntax": [
        "error",
        {
          selector: "JSXAttribute[name.name='dangerouslySetInnerHTML']",
          message: "Text of models, tools and users is never HTML.",
        },
        { selector: "Property[key.name='queryKey'] > ArrayExpression", message: "Keys of queries are in queryKeys of src/api/queries.tsx." },
      ],
      // `== null` also covers a field that the server leaves out.
      eqeqeq: ["error", "always", { null: "ignore" }],
    },
  },
  ...areaRules,
  { files: ["src/platform/plain-http.ts", "e2e/**", ...TESTS], rules: { "no-restricted-properties": "off" } },
  { files: ["src/app/**"], rules: { "no-restricted-imports": ["error", { paths: [perToken] }] } },
  // The timeline shows each token as it comes.
  { files: ["src/timeline/list/timeline.tsx"], rules: { "no-restricted-imports": "off" } },
  {
    files: ["e2e/**"],
    rules: {
      "no-restricted-syntax": [
        "error",
        { selector: "CallExpression[callee.property.name='waitForTimeout']", message: "Wait for what the test needs, not for a time." },
        {
          selector: "CallExpression[callee.name='setTimeout'], CallExpression[callee.object.name='window'][callee.property.name='setTimeout']",
          message: "Wait for what the test needs, not for a time.",
        },
        { selector: "Literal[value='networkidle']", message: "Wait for what the test looks at: a quiet network says little." },
      ],
    },
  },
  { files: ["*.js", "*.config.ts"], ...ts.configs.disableTypeChecked },
);
