import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, beforeAll, describe, expect, it } from "vitest";
import { BlockReader, loadMending, readBlocks } from "./blocks";
import { Markdown } from "./markdown";
import { WebImages } from "./web-image";

beforeAll(loadMending);
afterEach(cleanup);

function html(text: string, isLive = false): string {
  const { container } = render(<Markdown text={text} isLive={isLive} />);
  const found = container.firstElementChild?.innerHTML ?? "";
  cleanup();
  return found;
}

describe("markdown", () => {
  it.each([
    ["*em* **strong** ~~del~~", "<p><em>em</em> <strong>strong</strong> <del>del</del></p>"],
    ["`a < b`", "<p><code>a &lt; b</code></p>"],
    ["# One\n\n### Three", '<h3 class="markdown-h1">One</h3><h4 class="markdown-h3">Three</h4>'],
    ["- a\n- b", "<ul><li><span>a</span></li><li><span>b</span></li></ul>"],
    ["3. a\n4. b", '<ol start="3"><li><span>a</span></li><li><span>b</span></li></ol>'],
    ["> quoted", "<blockquote><p>quoted</p></blockquote>"],
    ["a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"],
    ["line  \nbreak", "<p>line<br>break</p>"],
    ["\\*not em\\*", "<p>*not em*</p>"],
    ["&amp; &copy; &#65; &#x42; &nope;", "<p>&amp; © A B &amp;nope;</p>"],
    ["<b>bold?</b>", "<p>&lt;b&gt;bold?&lt;/b&gt;</p>"],
    ["<div>\nhi\n</div>", '<p class="markdown-raw">&lt;div&gt;\nhi\n&lt;/div&gt;</p>'],
    ["[a]: https://x.test/\n\nsee [a]", '<p>see <a class="ui-link" href="https://x.test/" target="_blank" rel="noreferrer noopener">a</a></p>'],
    ["[local](../etc/passwd)", "<p><span>local</span></p>"],
    ["[js](javascript:alert(1))", "<p><span>js</span></p>"],
  ])("%s", (text, expected) => {
    expect(html(text)).toBe(expected);
  });

  it.each([
    ["$x^2$ and $n$", ["x^2", "n"]],
    ["\\(a + b\\) and \\[c\\]", ["a + b", "c"]],
    ["so $$e = mc^2$$ it is", ["e = mc^2"]],
    ["$\\frac{a}{b}$, $5 \\times 3$", ["\\frac{a}{b}", "5 \\times 3"]],
    ["Text:\n$$\nx_1 * y_2 * z\n$$\nmore", ["x_1 * y_2 * z"]],
    ["It costs $5 and $10.", []],
    ["$5-$10, US$6 or 7$", []],
    ["between $5 (the price) and about 6$", []],
    ["echo $HOME/$USER:$PATH $1 $2", []],
    ["`$x$` and \\$y\\$", []],
    ["$ x$ and $y $", []],
    ["costs $5.\n\nNext $6.", []],
    [`$${"x".repeat(5000)}$`, []],
  ])("finds the formulas of %s", (text, expected) => {
    const found: string[] = [];
    JSON.stringify(readBlocks(text), (_, value: unknown) => {
      if (typeof value === "object" && value !== null && "isDisplay" in value) found.push((value as unknown as { text: string }).text);
      return value;
    });
    expect(found).toEqual(expected);
  });

  it("shows a formula that is being written as it stands, and reads nothing in it as markdown", () => {
    const text = "So:\n\n$$\na_1 * b_2 *";
    expect(html(text, true)).toContain('<code class="markdown-math-source is-display">a_1 * b_2 *</code>');
  });

  it("reads many formulas that never end in a time that grows with their number", () => {
    const timeOf = (count: number) => {
      const began = performance.now();
      readBlocks("\\(".repeat(count));
      return performance.now() - began;
    };
    timeOf(1000);
    expect(timeOf(40_000)).toBeLessThan(40 * Math.max(timeOf(5000), 20));
  });

  it("collects footnotes below the text, numbered, with ways there and back; a mark without a note stays text", () => {
    render(<Markdown text={"One[^a], two[^b], none[^c].\n\n[^a]: First *note*.\n[^b]: Second,\n  on two lines."} />);
    expect(screen.getByRole("list", { name: "Footnotes" }).textContent).toBe("First note. ↑Second, on two lines. ↑");
    expect(document.body.textContent).toContain("none[^c]");
    fireEvent.click(screen.getByRole("button", { name: "Footnote 2" }));
    expect(document.activeElement?.textContent).toContain("Second");
    fireEvent.click(screen.getByRole("button", { name: "Back to the text of footnote 2" }));
    expect(document.activeElement?.textContent).toBe("2");
  });

  it("shows an image that stands in the text, and no other", () => {
    render(<Markdown text={"![dot](data:image/png;base64,iVBORw0KGgo=) ![svg](data:image/svg+xml;base64,PHN2Zz4=) ![far](https://x.test/a.png)"} />);
    expect(screen.getAllByRole("img").map((one) => one.getAttribute("alt"))).toEqual(["dot"]);
    expect(screen.getByRole("link", { name: "far" }).getAttribute("target")).toBe("_blank");
  });

  it("offers to load an image of the web in a chat, and names an image in a link", () => {
    const text = "![chart](https://x.test/a.png) [![badge](https://b.test/b.svg)](https://x.test/) ![m](mailto:a@b.test)";
    const { container } = render(
      <WebImages chatId="c">
        <Markdown text={text} />
      </WebImages>,
    );
    expect(screen.getByRole("button", { name: "Load chart from x.test" }).title).toBe("Load it through the server");
    expect(screen.getAllByRole("link").map((one) => [one.getAttribute("href"), one.textContent])).toEqual([
      ["https://x.test/a.png", ""],
      ["https://x.test/", "badge"],
    ]);
    expect(container.querySelector("img, a a, a button")).toBeNull();
  });

  it("renders tables with their alignment", () => {
    render(<Markdown text={"| a | b |\n|---|--:|\n| 1 | 2 |"} />);
    expect(screen.getAllByRole("columnheader").map((cell) => cell.textContent)).toEqual(["a", "b"]);
    expect(screen.getByRole("cell", { name: "2" }).dataset.align).toBe("right");
  });

  it("renders task lists with boxes that cannot be changed", () => {
    render(<Markdown text={"- [x] done\n- [ ] open"} />);
    const boxes = screen.getAllByRole<HTMLInputElement>("checkbox");
    expect(boxes.map((box) => [box.checked, box.disabled])).toEqual([
      [true, true],
      [false, true],
    ]);
  });

  it("names the language of code and wraps its lines by choice", () => {
    render(<Markdown text={"```python\nx = 1\n```"} />);
    const code = screen.getByLabelText("Code, python");
    expect(code.textContent).toBe("x = 1");
    fireEvent.click(screen.getByRole("button", { name: "Wrap lines" }));
    expect(code.className).toBe("is-wrapped");
  });

  it("never fetches an image", () => {
    expect(html("![logo](https://tracker.test/x.png)")).not.toContain("<img");
  });

  it("shows a caret after the last character of live text", () => {
    expect(html("- a\n- b", true)).toMatch(/b<\/span><span class="markdown-caret"[^>]*><\/span><\/span><\/li><\/ul>$/);
  });

  it("closes what the model has not closed yet", () => {
    expect(html("**bold", true)).toContain("<strong>");
    expect(html("see `co", true)).toContain("<code>co</code>");
    expect(html("```py\nx = 1", true)).toContain("x = 1");
    expect(html("a [link](https://x.te", true)).not.toContain("href");
  });
});

describe("text that streams", () => {
  it.each(CORPUS.map((text, index) => [index, text] as const))("never throws on a prefix of text %i", (_, text) => {
    for (let end = 0; end <= text.length; end += 1) expect(() => html(text.slice(0, end), true)).not.toThrow();
  });

  it.each(CORPUS.map((text, index) => [index, text] as const))("ends as text %i would be read at once", (_, text) => {
    const reader = new BlockReader();
    for (let end = 0; end < text.length; end += 7) reader.read(text.slice(0, end));
    const streamed = reader.read(text).map((block) => block.raw.trim());
    expect(streamed.slice(0, -1)).toEqual(
      readBlocks(text)
        .slice(0, -1)
        .map((block) => block.raw.trim()),
    );
  });

  it("keeps the blocks before the last two", () => {
    const reader = new BlockReader();
    const text = "one\n\ntwo\n\nthree\n\nfour";
    const [before] = reader.read(text);
    expect(reader.read(`${text} and more`)[0]).toBe(before);
  });
});

it("brackets of formulas keep their backslash, other escapes do not", () => {
  const { container } = render(<Markdown text={"So \\(x^2\\) and \\[y\\], 2\\*3, \\_a\\_."} />);
  expect(container.textContent).toBe("So \\(x^2\\) and \\[y\\], 2*3, _a_.");
});

describe("hostile text", () => {
  const ELEMENTS = new Set(
    "P EM STRONG DEL CODE PRE BR H3 H4 H5 UL OL LI BLOCKQUOTE HR A SPAN DIV TABLE THEAD TBODY TR TH TD INPUT FIGURE FIGCAPTION BUTTON svg path rect circle".split(
      " ",
    ),
  );
  const ATTRIBUTES = new Set(
    "class href target rel title start type checked disabled readonly aria-label aria-hidden aria-busy aria-pressed role tabindex scope data-align".split(" "),
  );

  it.each(HOSTILE.map((text) => [text]))("%s", (text) => {
    for (const isLive of [false, true]) {
      const { container } = render(<Markdown text={text} isLive={isLive} />);
      for (const element of container.querySelectorAll("*")) {
        if (element.closest("svg") !== null) continue;
        expect(ELEMENTS, element.outerHTML).toContain(element.tagName);
        for (const { name } of element.attributes) expect(ATTRIBUTES, element.outerHTML).toContain(name);
        const href = element.getAttribute("href");
        if (href !== null) expect(href).toMatch(/^(?:https?:\/\/|mailto:)/);
        if (href !== null) expect(element.getAttribute("rel")).toBe("noreferrer noopener");
      }
      cleanup();
    }
  });

  it("survives nesting without end", () => {
    for (const text of [">".repeat(20_000), "- ".repeat(3000), "[".repeat(20_000), "*".repeat(20_000), "`".repeat(20_000)]) {
      expect(() => html(text)).not.toThrow();
    }
  });
});

// Texts for tests: what models write, and what attackers would like them to write.

const CORPUS: readonly string[] = [
  "While the soak test runs, here is what was wrong:\n\n1. **The claim now holds its rows.** `CLAIM` ends in `FOR UPDATE`.\n2. **Receivers can tell a repeat.** Each delivery carries its event id, so a crash is harmless.\n\nSee [the docs](https://docs.test/a_b?c=d&e=f) and <https://x.test>.",
  "## Result\n\n| case | before | after |\n|:-----|-------:|:-----:|\n| one | 3.1 s | 0.8 s |\n| two `x` | 4 | 5 |\n\n- [x] tests\n- [ ] docs\n  - nested *item*\n\n> quoted **text**\n> over two lines",
  "```python\nasync def drain(pool, n=100):\n    async with pool.tx() as tx:\n        rows = await tx.fetch(CLAIM, n)\n```\n\nand\n\n~~~\nplain ``` fence\n~~~\n\n    indented code\n",
  "Setext\n======\n\nline one  \nline two\\\nline three\n\n***\n\n![image](https://x.test/a.png \"title\") ~~gone~~ &amp; &lt;b&gt; \\* [ref][r] [ref]\n\n[r]: https://r.test 'R'\n[ref]: <https://ref.test>\n",
  "Mixed <b>html</b> and <script>alert(1)</script>\n\n<details>\n<summary>x</summary>\n\ntext\n\n</details>\n\n* a\n\n  b\n* c\r\n\r\n\ttabbed\n",
  "Emoji 🧑‍💻 and combining é, RTL שלום, math $x_1$ and $$y$$, a_b_c, 2*3*4, https://auto.test/path_(x), me@mail.test",
];

const HOSTILE: readonly string[] = [
  "<script>alert(1)</script>",
  "<img src=x onerror=alert(1)>",
  "<svg/onload=alert(1)>",
  "<iframe src=javascript:alert(1)></iframe>",
  "<a href='javascript:alert(1)' onclick=alert(1)>x</a>",
  "[x](javascript:alert(1))",
  "[x](JaVaScRiPt:alert(1))",
  "[x](java\tscript:alert(1))",
  "[x](&#106;avascript:alert(1))",
  "[x](&#x6A;avascript&colon;alert(1))",
  "[x](data:text/html,<script>alert(1)</script>)",
  "[x](vbscript:msgbox(1))",
  "[x](file:///etc/passwd)",
  "[x](//evil.test/a)",
  "[x](\\\\evil.test\\a)",
  "[x](blob:https://x/1)",
  "[x]: javascript:alert(1)\n\n[x]",
  "<javascript:alert(1)>",
  "![x](javascript:alert(1))",
  "![x](data:image/svg+xml;base64,PHN2Zy8+)",
  '![x"onerror=alert(1)](https://x.test/"onload=alert(1))',
  '[x](https://x.test "onmouseover=alert(1)")',
  "[x](https://x.test'onmouseover=alert(1))",
  '```"><script>alert(1)</script>\nx\n```',
  "```js onload=alert(1)\n</code></pre><script>alert(1)</script>\n```",
  "`<script>`</code><script>alert(1)</script>",
  "| <img src=x onerror=alert(1)> | b |\n|---|---|\n| [x](javascript:1) | <style>*{}</style> |",
  "- [x] <input onfocus=alert(1) autofocus>",
  "<style>@import 'https://evil.test'</style>",
  "<math><mtext></table><img src onerror=alert(1)>",
  "<form action=https://evil.test><button>x</button></form>",
  "<base href=https://evil.test>",
  "<meta http-equiv=refresh content='0;url=https://evil.test'>",
  "\u0000<script>\u0000alert(1)</script>",
  "[a](https://x.test)[b](javascript:1)",
  "mailto:[x](mailto:a@b.test?body=<script>)",
  "streamdown:incomplete-link [x](streamdown:x)",
];
