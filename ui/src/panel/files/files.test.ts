import { describe, expect, test } from "vitest";
import { appendBytes, type FileContent, richKind } from "./file-content";
import { readNotebook, readTable } from "./tables";
import { ancestorsOf, EMPTY_TREE, type Entry, type LoadedDirectory, relativePath, treeRows, type TreeState, withExpanded, withLoaded } from "./tree-state";
import { badName, packFiles } from "./upload";

const bytes = new TextEncoder().encode("ä€𝄞 end");

describe("pieces of a text", () => {
  test("a character cut between two pieces is whole in the text, wherever it was cut", () => {
    for (let cut = 0; cut <= bytes.length; cut += 1) {
      const first = appendBytes(null, bytes.slice(0, cut), bytes.length, "1");
      const both = appendBytes(first, bytes.slice(cut), bytes.length, "1");
      expect(both.text).toBe("ä€𝄞 end");
      expect(both.loaded).toBe(bytes.length);
      expect(first.text).not.toContain("\ufffd");
    }
  });

  test("a character that the file itself cuts is shown as such at the end", () => {
    const cut: FileContent = appendBytes(null, bytes.slice(0, 1), 1, "1");
    expect(cut.text).toBe("\ufffd");
    expect(cut.rest.length).toBe(0);
  });
});

const file = (name: string): Entry => ({ name, kind: "file", size_bytes: 1 });
const directory = (name: string): Entry => ({ name, kind: "directory" });
const ready = (...entries: Entry[]): LoadedDirectory => ({ state: "ready", entries, isCut: false });

function tree(directories: Record<string, LoadedDirectory>, ...expanded: string[]): TreeState {
  const loaded = Object.entries(directories).reduce((state, [path, found]) => withLoaded(state, path, found), EMPTY_TREE);
  return withExpanded(loaded, expanded, true);
}

const shown = (state: TreeState, query = ""): string[] => treeRows(state, query).map((row) => `${"  ".repeat(row.level - 1)}${row.name}`);

describe("the rows of the tree", () => {
  const state = tree({ "": ready(directory("src"), file("README.md")), src: ready(file("app.py")) }, "src");

  test("entries of an open directory follow it, one level deeper", () => {
    expect(shown(state)).toEqual(["src", "  app.py", "README.md"]);
    expect(shown(withExpanded(state, ["src"], false))).toEqual(["src", "README.md"]);
  });

  test("a search shows what is loaded and matches, with its directories, also in closed ones", () => {
    expect(shown(withExpanded(state, ["src"], false), "APP")).toEqual(["src", "  app.py"]);
    expect(shown(state, "nothing")).toEqual([]);
    expect(shown(state, "s")).toEqual(["src"]);
  });

  test("an empty, a cut and a failed directory say so", () => {
    expect(shown(tree({ "": ready() }))).toEqual(["Empty"]);
    expect(shown(tree({ "": { state: "ready", entries: [file("a")], isCut: true } }))).toEqual(["a", "Only 1 entries are shown."]);
    const failed = treeRows(tree({ "": { state: "failed", entries: [], error: "why" } }), "");
    expect(failed.map((row) => [row.kind, row.error])).toEqual([["note", "why"]]);
  });

  test("a link is what it leads to, and cannot be opened if that is outside", () => {
    const links: Entry[] = [
      { name: "in", kind: "link", target: "src", target_kind: "directory" },
      { name: "out", kind: "link", target: "/etc" },
    ];
    const rows = treeRows(tree({ "": ready(...links) }), "");
    expect(rows.map((row) => row.kind)).toEqual(["directory", "other"]);
    expect(rows[1]?.title).toBe("Link to /etc, which cannot be read here");
  });
});

describe("paths", () => {
  test("absolute paths are read from the home directory", () => {
    expect(relativePath("/home/dev/app/a.py", "/home/dev")).toBe("app/a.py");
    expect(relativePath("/home/dev", "/home/dev")).toBe("");
    expect(relativePath("/home/developer/x", "/home/dev")).toBeNull();
    expect(relativePath("./app/", "/home/dev")).toBe("app");
    expect(relativePath("/x", null)).toBeNull();
  });

  test("all directories above a file are known", () => {
    expect(ancestorsOf("a/b/c.py")).toEqual(["", "a", "a/b"]);
    expect(ancestorsOf("c.py")).toEqual([""]);
  });
});

describe("files as what they are", () => {
  test("a table has quoted values, and is cut", () => {
    expect(readTable('a,"b, ""c""\nd"\r\n1,2\n3,4\n', ",", 2)).toEqual([
      ["a", 'b, "c"\nd'],
      ["1", "2"],
    ]);
    expect(readTable("", ",", 5)).toEqual([]);
    expect(readTable("x", "\t", 5)).toEqual([["x"]]);
  });

  test("a notebook shows text, code, pictures and errors, and no HTML", () => {
    const code = {
      cell_type: "code",
      source: ["print(1)\n", "2"],
      outputs: [
        { output_type: "stream", name: "stdout", text: ["1\n"] },
        { output_type: "display_data", data: { "text/html": "<script>1</script>", "text/plain": "plain" } },
        { output_type: "display_data", data: { "image/png": "AAA=\n" } },
        { output_type: "display_data", data: { "image/png": "javascript:1" } },
        { output_type: "error", ename: "ValueError", evalue: "bad" },
      ],
    };
    const found = readNotebook(JSON.stringify({ cells: [{ cell_type: "markdown", source: "# Title" }, code], metadata: {} }));
    expect(found?.cells).toEqual([
      { kind: "text", source: "# Title" },
      {
        kind: "code",
        source: "print(1)\n2",
        outputs: [
          { kind: "text", isError: false, text: "1\n" },
          { kind: "text", isError: false, text: "plain" },
          { kind: "image", url: "data:image/png;base64,AAA=" },
          { kind: "text", isError: true, text: "ValueError: bad" },
        ],
      },
    ]);
    expect(readNotebook("{}")).toBeNull();
    expect(readNotebook("[1")).toBeNull();
  });

  test("the kind is that of the name if the content fits", () => {
    expect(richKind("docs/a.MD", "text")).toBe("markdown");
    expect(richKind("a.pdf", "binary")).toBe("pdf");
    expect(richKind("a.pdf", "text")).toBeNull();
    expect(richKind("a.html", "binary")).toBeNull();
    expect(richKind("a.py", "text")).toBeNull();
  });

  test("files are packed as a tar archive", async () => {
    const packed = new Uint8Array(await packFiles([new File(["hello"], "ä.txt", { lastModified: 1000 })]).arrayBuffer());
    expect(packed.length).toBe(512 * 4);
    const text = (from: number, to: number) => new TextDecoder().decode(packed.slice(from, to)).replace(/\0.*/s, "");
    expect([text(0, 100), text(124, 136), text(257, 263), text(512, 517)]).toEqual(["ä.txt", "00000000005", "ustar", "hello"]);
    expect([badName("a/b"), badName("x".repeat(101)), badName("a.txt")]).toEqual([true, true, false]);
  });
});
