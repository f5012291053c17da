import { Paperclip, TriangleAlert } from "lucide-react";
import { type ClipboardEvent, type KeyboardEvent, type ReactNode, useCallback, useRef, useState } from "react";
import type { BusyBehavior, SettledState } from "@/chat-state";
import { classes, Icon } from "@/components";
import { useAction } from "@/platform/actions";
import { usePreference } from "@/platform/preferences";
import { toast } from "@/platform/toasts";
import { Chips } from "./chips";
import { ContextRing, contextUse } from "./context-ring";
import { CostChip } from "./cost";
import { hasFailedUpload, isEmpty, isUploading, type MessageDraft } from "./draft/draft";
import { useDraft } from "./draft/draft-store";
import { addFiles, isLongPaste, pastedFile, removeFile } from "./draft/uploads";
import { useFileDrop } from "./file-drop";
import { boxKey } from "./keys";
import { contextLimitOf, unreadableFiles } from "./model-choice";
import { ModelPicker } from "./model-picker";
import { PlanButton, PlusMenu } from "./plus-menu";
import { usePromptHistory } from "./prompt-history";
import { SendButton, StopButton } from "./send-button";
import type { SlashCommand } from "./slash-commands";
import { SLASH_MENU_ID, slashItemId, SlashMenu } from "./slash-menu";
import { TextBox } from "./text-box";
import { usePlanChoice } from "./use-mode";
import { useModelChoice } from "./use-model-choice";
import { useSlash } from "./use-slash";

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
export function sendRefusal(draft: MessageDraft): string | null {
  if (isUploading(draft)) return "Wait until the files are uploaded";
  if (hasFailedUpload(draft)) return "Remove the file that failed";
  return isEmpty(draft) ? "" : null;
}

/** "/plan text" is the text, in plan mode. */
export function withPlanCommand(draft: MessageDraft): MessageDraft {
  const text = /^\/plan\s+(\S[\s\S]*)$/i.exec(draft.text.trimStart())?.[1];
  return text === undefined ? draft : { ...draft, text, isPlan: true };
}

export function MessageBox(props: MessageBoxProps) {
  const { chatId, draftKey, state, behavior, hasChoice } = props;
  const [draft, change] = useDraft(draftKey);
  const [sendKey] = usePreference("sendKey");
  const [isPicking, setPicking] = useState(false);
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
  const refusal = sendRefusal(draft);
  const send = (as: BusyBehavior) => {
    if (refusal !== null || props.isSending) return;
    history.forget();
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
              {choice.model?.display_name} cannot read {unreadable.join(", ")}: it is told only that the file is there. Choose another model, or remove the file.
            </span>
          </div>
        )}
        <div className={classes("composer-box", isDropping && "is-dropping")}>
          {slash.commands !== null && (
            <SlashMenu commands={slash.commands} active={slash.active} state={state} onRun={slash.run} />
          )}
          <Chips
            draft={draft}
            onRemoveFile={(attachment) => removeFile(draftKey, attachment)}
            onRemoveReference={(index) =>
              change((was) => ({ ...was, references: was.references.filter((_, at) => at !== index) }))
            }
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
            <PlusMenu chatId={chatId} draft={draft} onDraft={change} plan={plan} onAttach={() => picker.current?.click()} />
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
            <ModelPicker
              models={choice.models}
              model={choice.model}
              effort={choice.effort}
              open={isPicking}
              onOpenChange={setPicking}
              onModel={(model) => change((was) => ({ ...was, modelConfigId: model.id, effort: null }))}
              onEffort={(effort) => change((was) => ({ ...was, effort }))}
            />
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
