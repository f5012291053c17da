/** The files of the chat's workspace: a tree, and the file that was opened from it. */
import "@/styles/files.css";
import { Container, FolderX, RefreshCw, Search, Upload } from "lucide-react";
import { type DragEvent, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { ApiError } from "@/api/client";
import { Button, classes, ConfirmDialog, EmptyState, ErrorNote, errorWords, Icon, IconButton, Skeleton } from "@/components";
import { useChatDetails } from "@/connection";
import { openPanel, type PanelOptions, usePanelRequest } from "@/platform/actions";
import { toast } from "@/platform/toasts";
import { plural } from "@/platform/words";
import { FileTree, type Tree, useTree } from "./file-tree";
import { FileView } from "./file-view";
import { parentOf, relativePath, treeRows } from "./tree-state";
import { badName, uploadFiles } from "./upload";

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

  const chat = useChatDetails(chatId).data;
  const workspaceId = chat?.is_owner === false ? null : (chat?.workspace_id ?? null);
  const directory = path === null ? (relativePath(tree.state.directory ?? "", home) ?? "") : parentOf(relativePath(path, home) ?? "");
  const upload = useUpload(workspaceId, directory, tree);

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
        <div className={classes("files-side", upload.isOver && "is-over")} {...upload.dropTarget}>
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
            {workspaceId !== null && upload.button}
            <IconButton icon={RefreshCw} label="Read the directories again" onClick={tree.refresh} />
          </div>
          <div className="files-scroll">
            {rows.length === 0 && query !== "" && <p className="files-end">No opened directory has such a name.</p>}
            <FileTree chatId={chatId} rows={rows} selected={relative} onOpen={(opened) => setShown({ path: opened, target: null })} onToggle={tree.toggle} />
          </div>
        </div>
        {relative !== null && (
          <FileView
            key={relative}
            chatId={chatId}
            path={relative}
            target={shown?.target ?? null}
            canWrite={workspaceId !== null}
            onBack={() => setShown(null)}
          />
        )}
      </div>
      {upload.dialog}
    </div>
  );
}

/** Uploads by a button or by dropping files; asks before files are replaced. */
function useUpload(workspaceId: string | null, directory: string, tree: Tree) {
  const input = useRef<HTMLInputElement>(null);
  const [isOver, setOver] = useState(false);
  const [busy, setBusy] = useState(false);
  const [waiting, setWaiting] = useState<readonly File[]>([]);
  const where = directory === "" ? "the home directory" : directory;
  const names = new Set(tree.state.directories.get(directory)?.entries.map((entry) => entry.name));
  const replaced = waiting.filter((file) => names.has(file.name));

  const send = async (files: readonly File[]) => {
    setWaiting([]);
    if (workspaceId === null) return;
    setBusy(true);
    try {
      const done = await uploadFiles(workspaceId, directory, files);
      toast(`${plural(done.files ?? files.length, "file")} in ${where}.`);
      tree.refresh();
    } catch (error) {
      toast({ text: errorWords(error).text, tone: "danger" });
    } finally {
      setBusy(false);
    }
  };
  const take = (files: readonly File[]) => {
    const bad = files.find((file) => badName(file.name));
    if (bad !== undefined) toast({ text: `${bad.name} cannot be uploaded: its name is too long.`, tone: "danger" });
    else if (files.some((file) => names.has(file.name))) setWaiting(files);
    else if (files.length > 0) void send(files);
  };
  const onDrag = (event: DragEvent) => {
    if (workspaceId === null || !event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    setOver(event.type === "dragover");
    if (event.type !== "drop") return;
    const isDirectory = [...event.dataTransfer.items].some((item) => item.webkitGetAsEntry()?.isDirectory === true);
    if (isDirectory) toast({ text: "Directories cannot be dropped here: use chatd workspaces push.", tone: "danger" });
    else take([...event.dataTransfer.files]);
  };
  return {
    isOver,
    dropTarget: { onDragOver: onDrag, onDragLeave: () => setOver(false), onDrop: onDrag },
    button: (
      <>
        <IconButton icon={Upload} label={busy ? "Uploading" : `Upload files to ${where}`} disabled={busy} onClick={() => input.current?.click()} />
        <input
          ref={input}
          type="file"
          multiple
          hidden
          aria-label="Files to upload"
          onChange={(event) => {
            take([...(event.target.files ?? [])]);
            event.target.value = "";
          }}
        />
      </>
    ),
    dialog: (
      <ConfirmDialog
        open={replaced.length > 0}
        onOpenChange={() => setWaiting([])}
        title={`Replace ${plural(replaced.length, "file")} in ${where}?`}
        description={replaced
          .slice(0, 10)
          .map((file) => file.name)
          .join(", ")}
        action="Replace"
        danger
        onConfirm={() => send(waiting)}
      />
    ),
  };
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
