import { FileText, Image as ImageIcon, MessageSquareText, Paperclip, Terminal, TriangleAlert, X } from "lucide-react";
import { type ClipboardEvent, type KeyboardEvent, lazy, type ReactNode, Suspense, useCallback, useRef, useState } from "react";
import type { BusyBehavior } from "@/chat-state/outbox";
import type { SettledState } from "@/chat-state/types";
import { Chip, classes, Icon } from "@/components";
import { useAction } from "@/platform/actions";
import { usePreference } from "@/platform/preferences";
import { toast } from "@/platform/toasts";
import { ContextRing, contextUse, CostChip } from "./context-and-cost";
import { type Attachment, commandOf, hasFailedUpload, isEmpty, isUploading, type MessageDraft } from "./draft";
import { addFiles, isLongPaste, pastedFile, removeFile, useDraft } from "./draft-store";
import { contextLimitOf, unreadableFiles } from "./model-choice";
import { ModelPicker, useModelChoice } from "./model-picker";
import { PlanButton, PlusMenu, usePlanChoice, WorkspaceButton } from "./plus-menu";
import { SendButton, StopButton } from "./send-button";
import { remember, SLASH_MENU_ID, type SlashCommand, slashItemId, SlashMenu, useSlash } from "./slash";
import { boxKey, TextBox, useFileDrop, usePromptHistory } from "./text-box";
import { VoiceButton } from "./voice-button";

const WorkspaceDialog = lazy(() => import("./workspace-dialog"));

interface MessageBoxProps {
  chatId: string | null;
  draftKey: string;
  /** Null for a new chat. */
  state: SettledState | null;
  /** What the button does. */
  verb: string;
  placeholder: string;
  behavior: BusyBehavior;
  hasChoice: boolean;
  isSending: boolean;
  canStop: boolean;
  onBehavior: (behavior: BusyBehavior) => void;
  onSend: (draft: MessageDraft, behavior: BusyBehavior) => void;
  onStop: () => void;
  onSlash: (command: SlashCommand) => void;
  /** The arrow up in an empty box. True: something was found to edit. */
  onEditLast: () => boolean;
  /** Above the box: queue and notices. */
  children?: ReactNode;
}

/** Why the draft cannot be sent; null: it can. An empty one needs no words. */
function sendRefusal(draft: MessageDraft): string | null {
  if (isUploading(draft)) return "Wait until the files are uploaded";
  if (hasFailedUpload(draft)) return "Remove the file that failed";
  return isEmpty(draft) ? "" : null;
}

/** "/plan text" is the text, in plan mode. */
function withPlanCommand(draft: MessageDraft): MessageDraft {
  const text = /^\/plan\s+(\S[\s\S]*)$/i.exec(draft.text.trimStart())?.[1];
  return text === undefined ? draft : { ...draft, text, isPlan: true };
}

export function MessageBox(props: MessageBoxProps) {
  const { chatId, draftKey, state, behavior, hasChoice } = props;
  const [draft, change] = useDraft(draftKey);
  const [sendKey] = usePreference("sendKey");
  const [isPicking, setPicking] = useState(false);
  const [isPlacing, setPlacing] = useState(false);
  const box = useRef<HTMLTextAreaElement | null>(null);
  const picker = useRef<HTMLInputElement | null>(null);
  const choice = useModelChoice(chatId, draft);
  const plan = usePlanChoice(chatId, draft, change);
  const setText = useCallback((text: string) => change((was) => ({ ...was, text })), [change]);
  const history = usePromptHistory(chatId, setText);
  const slash = useSlash(draft.text, state, (command) => {
    setText("");
    if (command.name === "model") setPicking(true);
    else if (command.name === "plan") plan.setPlan(!plan.isPlan);
    else props.onSlash(command);
  });
  const attach = (files: readonly File[]) => {
    const leftOut = addFiles(draftKey, draft.attachments.length, files);
    if (leftOut !== null) toast({ text: leftOut, tone: "danger" });
  };
  useAction("focusComposer", () => box.current?.focus());
  useAction("openModelPicker", () => setPicking(true));
  useAction("insertReference", (part) => {
    change((was) => ({ ...was, references: [...was.references, part] }));
    box.current?.focus();
  });
  useAction("insertText", (text) => {
    change((was) => ({ ...was, text: was.text.trim() === "" ? text : `${was.text}\n\n${text}` }));
    box.current?.focus();
  });
  const giveBack = (text: string) => change((was) => (was.text === "" ? { ...was, text } : was));
  const refusal = sendRefusal(draft);
  const command = commandOf(draft);
  const send = (as: BusyBehavior) => {
    if (refusal !== null || props.isSending) return;
    history.forget();
    if (draft.attachments.length === 0 && draft.references.length === 0 && remember(draft.text, () => giveBack(draft.text))) {
      setText("");
      return;
    }
    props.onSend(plan.canChange ? withPlanCommand(draft) : draft, as);
    box.current?.focus();
  };
  const onKeyDown = (event: KeyboardEvent<HTMLTextAreaElement>) => {
    if (slash.onKeyDown(event)) return;
    const key = boxKey(event, sendKey, draft.text === "" || history.isShown(draft.text));
    if (key === "send" || key === "interrupt") {
      event.preventDefault();
      send(key === "interrupt" ? "interrupt" : behavior);
    } else if (key === "history-back") {
      event.preventDefault();
      if (draft.text !== "" || !props.onEditLast()) void history.back();
    } else if (key === "history-on" && history.on(draft.text)) {
      event.preventDefault();
    }
  };
  const onPaste = (event: ClipboardEvent<HTMLTextAreaElement>) => {
    const files = [...event.clipboardData.files];
    const text = event.clipboardData.getData("text/plain");
    if (files.length > 0 && text === "") {
      event.preventDefault();
      attach(files);
    } else if (isLongPaste(text) && !pasteInline.current) {
      event.preventDefault();
      attach([pastedFile(text)]);
    }
    pasteInline.current = false;
  };
  const pasteInline = useRef(false);
  const isDropping = useFileDrop(attach);
  const unreadable = unreadableFiles(choice.model, draft.attachments);
  const use = state === null ? null : contextUse(state.messages, contextLimitOf(choice.model));
  return (
    <div className="composer-dock">
      {isDropping && (
        <div className="composer-drop">
          <p>
            <Icon of={Paperclip} size="lg" />
            Drop files to attach them to your message
          </p>
        </div>
      )}
      <div className="composer-column">
        {props.children}
        {unreadable.length > 0 && (
          <div className="composer-note tone-warn" role="status">
            <Icon of={TriangleAlert} size="sm" />
            <span className="ui-grow">
              {choice.model?.display_name} cannot read {unreadable.join(", ")}: it is told only that the file is there. Choose another model, or remove the
              file.
            </span>
          </div>
        )}
        {command !== null && (
          <div className="composer-note" role="status">
            <Icon of={Terminal} size="sm" />
            <span className="ui-grow">Runs in the chat’s workspace. The model reads the output with your next message.</span>
          </div>
        )}
        <div className={classes("composer-box", isDropping && "is-dropping")}>
          {slash.commands !== null && <SlashMenu commands={slash.commands} active={slash.active} state={state} onRun={slash.run} />}
          <Chips
            draft={draft}
            onRemoveFile={(attachment) => removeFile(draftKey, attachment)}
            onRemoveReference={(index) => change((was) => ({ ...was, references: was.references.filter((_, at) => at !== index) }))}
          />
          <TextBox
            value={draft.text}
            placeholder={isDropping ? "Drop files to attach them" : props.placeholder}
            label="Message"
            boxRef={box}
            onChange={setText}
            onKeyDown={(event) => {
              // Shift pastes long text as it is.
              pasteInline.current = event.shiftKey && (event.ctrlKey || event.metaKey);
              onKeyDown(event);
            }}
            onPaste={onPaste}
            controls={slash.commands === null ? undefined : SLASH_MENU_ID}
            active={slash.commands === null ? undefined : slashItemId(slash.active)}
          />
          <div className="composer-toolbar">
            <PlusMenu
              chatId={chatId}
              draft={draft}
              onDraft={change}
              plan={plan}
              onAttach={() => picker.current?.click()}
              onWorkspace={() => setPlacing(true)}
            />
            <input
              ref={picker}
              type="file"
              multiple
              hidden
              aria-label="Files"
              onChange={(event) => {
                attach([...(event.target.files ?? [])]);
                event.target.value = "";
              }}
            />
            <PlanButton plan={plan} />
            <WorkspaceButton workspace={draft.workspace} onPress={() => setPlacing(true)} />
            {isPlacing && (
              <Suspense>
                <WorkspaceDialog
                  chosen={draft.workspace}
                  onChoose={(workspace) => change((was) => ({ ...was, workspace }))}
                  onClose={() => setPlacing(false)}
                />
              </Suspense>
            )}
            <ModelPicker
              models={choice.models}
              model={choice.model}
              effort={choice.effort}
              open={isPicking}
              onOpenChange={setPicking}
              onModel={(model) => change((was) => ({ ...was, modelConfigId: model.id, effort: null }))}
              onEffort={(effort) => change((was) => ({ ...was, effort }))}
            />
            <VoiceButton onText={(words) => change((was) => ({ ...was, text: /(?:^|\s)$/.test(was.text) ? was.text + words : `${was.text} ${words}` }))} />
            <span className="ui-grow" />
            {use !== null && <ContextRing use={use} threshold={choice.model?.compaction_threshold ?? null} />}
            {chatId !== null && <CostChip chatId={chatId} />}
            <SendButton
              verb={props.verb}
              behavior={behavior}
              hasChoice={hasChoice}
              reason={refusal}
              busy={props.isSending}
              onSend={() => send(behavior)}
              onBehavior={props.onBehavior}
            />
            {props.canStop && <StopButton isStopping={state?.status === "interrupting"} onStop={props.onStop} />}
          </div>
        </div>
      </div>
    </div>
  );
}

interface ChipsProps {
  draft: MessageDraft;
  onRemoveFile: (attachment: Attachment) => void;
  onRemoveReference: (index: number) => void;
}

/** What goes with the text: quoted lines and files. */
function Chips({ draft, onRemoveFile, onRemoveReference }: ChipsProps) {
  if (draft.references.length === 0 && draft.attachments.length === 0) return null;
  return (
    <div className="composer-chips">
      {draft.references.map((part, index) => (
        <Chip
          key={`${part.file_name}:${part.start_line}:${index}`}
          icon={MessageSquareText}
          onRemove={() => onRemoveReference(index)}
          removeLabel={`Remove ${baseName(part.file_name)}`}
        >
          {baseName(part.file_name)}:{part.start_line}
          {part.end_line > part.start_line ? `–${part.end_line}` : ""}
        </Chip>
      ))}
      {draft.attachments.map((one) => (
        <FileChip key={one.id} attachment={one} onRemove={() => onRemoveFile(one)} />
      ))}
    </div>
  );
}

function baseName(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

function FileChip({ attachment, onRemove }: { attachment: Attachment; onRemove: () => void }) {
  const isImage = attachment.mediaType.startsWith("image/");
  return (
    <span className={classes("ui-chip composer-upload", attachment.state === "failed" && "is-bad")} aria-busy={attachment.state === "uploading"}>
      {attachment.previewUrl === null ? <Icon of={isImage ? ImageIcon : FileText} size="sm" /> : <img src={attachment.previewUrl} alt="" />}
      <span className="ui-ellipsis">{attachment.name}</span>
      <span className="tone-subtle" role={attachment.state === "failed" ? "alert" : undefined}>
        {stateText(attachment)}
      </span>
      <button type="button" aria-label={`Remove ${attachment.name}`} onClick={onRemove}>
        <Icon of={X} size="sm" />
      </button>
      {attachment.state === "uploading" && <progress max={1} value={attachment.progress} aria-label={`Uploading ${attachment.name}`} />}
    </span>
  );
}

function stateText(attachment: Attachment): string {
  if (attachment.state === "failed") return attachment.error ?? "Failed";
  if (attachment.state === "uploading") return `${Math.round(attachment.progress * 100)}%`;
  return attachment.size === 0 ? "" : sizeText(attachment.size);
}

export function sizeText(bytes: number): string {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1_000_000 ? `${Math.round(bytes / 1000)} KB` : `${(bytes / 1_000_000).toFixed(1)} MB`;
}

/** Focus stays in the text box while the page changes from a new chat to the one that it became. */
let wished: string | null = null;

export function wishFocus(chatId: string): void {
  wished = chatId;
}

/** True once for the chat. */
export function takeFocusWish(chatId: string): boolean {
  const isWished = wished === chatId;
  if (isWished) wished = null;
  return isWished;
}
