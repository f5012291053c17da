import js from "@eslint/js";
import hooks from "eslint-plugin-react-hooks";
import globals from "globals";
import ts from "typescript-eslint";

export default ts.config(
  { ignores: ["node_modules", "src/api/schema.d.ts", "public", "tools", "test-results", "playwright-report"] },
  js.configs.recommended,
  ...ts.configs.strictTypeChecked,
  ...ts.configs.stylisticTypeChecked,
  hooks.configs.flat["recommended-latest"],
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
      ],
      "no-restricted-syntax": [
        "error",
        {
          selector: "JSXAttribute[name.name='dangerouslySetInnerHTML']",
          message: "Text of models, tools and users is never HTML.",
        },
      ],
      // `== null` also covers a field that the server leaves out.
      eqeqeq: ["error", "always", { null: "ignore" }],
    },
  },
  {
    // It renders per token: whatever else shows a chat takes useSettledChat or useChatSelector.
    files: ["src/**"],
    ignores: ["src/connection/**", "src/timeline/list/timeline.tsx"],
    rules: { "no-restricted-imports": ["error", { paths: [{ name: "@/connection", importNames: ["useChat"], message: "useChat renders per token: take useSettledChat or useChatSelector." }] }] },
  },
  // A fixture of Playwright is given `use`, which is no hook of React.
  {
    files: ["e2e/**"],
    rules: {
      "react-hooks/rules-of-hooks": "off",
      "no-restricted-syntax": [
        "error",
        { selector: "CallExpression[callee.property.name='waitForTimeout']", message: "Wait for what the test needs, not for a time." },
        { selector: "CallExpression[callee.name='setTimeout'], CallExpression[callee.object.name='window'][callee.property.name='setTimeout']", message: "Wait for what the test needs, not for a time." },
        { selector: "Literal[value='networkidle']", message: "Wait for what the test looks at: a quiet network says little." },
      ],
    },
  },
  { files: ["*.js", "*.config.ts"], ...ts.configs.disableTypeChecked },
);
