/** The files of the chat's workspace: a tree, and the file that was opened from it. */
import "@/styles/files.css";
import { Container, FolderX, RefreshCw, Search } from "lucide-react";
import { useCallback, useEffect, useMemo, useState } from "react";
import { ApiError } from "@/api/client";
import { Button, EmptyState, ErrorNote, Icon, IconButton, Skeleton } from "@/components";
import { openPanel, type PanelOptions, usePanelRequest } from "@/platform/actions";
import { FileTree, type Tree, useTree } from "./file-tree";
import { FileView } from "./file-view";
import { relativePath, treeRows } from "./tree-state";

interface Shown {
  readonly path: string;
  readonly target: { readonly line: number } | null;
}

export function FilesTab({ chatId }: { readonly chatId: string }) {
  const tree = useTree(chatId);
  const [shown, setShown] = useState<Shown | null>(null);
  const [query, setQuery] = useState("");
  const rows = useMemo(() => treeRows(tree.state, query), [tree.state, query]);
  const { home } = tree.state;
  const open = useCallback(({ path, line }: PanelOptions) => {
    if (path !== undefined) setShown({ path, target: line === undefined ? null : { line } });
  }, []);
  usePanelRequest("files", open);

  const { reveal } = tree;
  const path = shown?.path ?? null;
  useEffect(() => {
    if (path !== null && home !== null) reveal(path);
  }, [path, home, reveal]);

  if (tree.error !== null) return <NoFiles tree={tree} />;
  if (home === null)
    return (
      <div className="panel-scroll">
        <Skeleton rows={6} />
      </div>
    );
  const relative = path === null ? null : (relativePath(path, home) ?? path);
  return (
    <div className="files-tab">
      <div className="files-grid" data-open={relative !== null}>
        <div className="files-side">
          <div className="panel-bar">
            <label className="ui-field files-search">
              <Icon of={Search} size="sm" />
              <input
                type="search"
                placeholder="Find in opened directories"
                aria-label="Find files by name in opened directories"
                value={query}
                onChange={(event) => setQuery(event.target.value)}
              />
            </label>
            <IconButton icon={RefreshCw} label="Read the directories again" onClick={tree.refresh} />
          </div>
          <div className="files-scroll">
            {rows.length === 0 && query !== "" && <p className="files-end">No opened directory has such a name.</p>}
            <FileTree rows={rows} selected={relative} onOpen={(opened) => setShown({ path: opened, target: null })} onToggle={tree.toggle} />
          </div>
        </div>
        {relative !== null && <FileView key={relative} chatId={chatId} path={relative} target={shown?.target ?? null} onBack={() => setShown(null)} />}
      </div>
    </div>
  );
}

const WORKSPACE_CODES = new Set(["no_workspace", "no_agent", "agent_lost", "agent_outdated"]);

function NoFiles({ tree }: { readonly tree: Tree }) {
  const code = tree.error instanceof ApiError ? tree.error.code : "";
  if (code === "forbidden") {
    return (
      <EmptyState icon={FolderX} title="Files are not shared">
        Only the owner of this chat sees the files of its workspace.
      </EmptyState>
    );
  }
  const again = <Button onClick={tree.refresh}>Try again</Button>;
  if (!WORKSPACE_CODES.has(code))
    return (
      <div className="panel-scroll">
        <ErrorNote error={tree.error} action={again} />
      </div>
    );
  const text =
    code === "no_workspace"
      ? "This chat has no workspace yet. It gets one when the agent first works with files."
      : tree.error instanceof ApiError
        ? tree.error.message
        : "";
  return (
    <EmptyState
      icon={Container}
      title={code === "no_workspace" ? "No files yet" : "The workspace does not answer"}
      actions={
        <>
          {again}
          {code !== "no_workspace" && (
            <Button variant="quiet" onClick={() => openPanel("workspace")}>
              Open workspace
            </Button>
          )}
        </>
      }
    >
      {text}
    </EmptyState>
  );
}
