import { ListTodo, Paperclip, Plus } from "lucide-react";
import { lazy, Suspense } from "react";
import { Icon, IconButton, Menu, MenuChoice, MenuItem } from "@/components";
import type { MessageDraft } from "./draft/draft";
import type { PlanChoice } from "./use-mode";

const McpChoices = lazy(async () => ({ default: (await import("./mcp-choices")).McpChoices }));

interface PlusMenuProps {
  chatId: string | null;
  draft: MessageDraft;
  onDraft: (change: (draft: MessageDraft) => MessageDraft) => void;
  plan: PlanChoice;
  onAttach: () => void;
}

/** What can be added to the message, and how the chat works. */
export function PlusMenu({ chatId, draft, onDraft, plan, onAttach }: PlusMenuProps) {
  return (
    <Menu trigger={<IconButton icon={Plus} label="Add files and choose tools" />} side="top" align="start">
      <MenuItem icon={Paperclip} onSelect={onAttach}>
        Attach files
      </MenuItem>
      {plan.canChange && (
        <MenuChoice icon={ListTodo} checked={plan.isPlan} onChecked={plan.setPlan} hint="It looks around and writes a plan, and changes nothing else">
          Plan mode
        </MenuChoice>
      )}
      {plan.canChange && (
        <Suspense>
          <McpChoices chatId={chatId} draft={draft} onDraft={onDraft} />
        </Suspense>
      )}
    </Menu>
  );
}

/** Shown while the chat plans; a press ends it. */
export function PlanButton({ plan }: { plan: PlanChoice }) {
  if (!plan.isPlan) return null;
  return (
    <button type="button" className="composer-pick is-on" aria-pressed="true" aria-label="Plan mode; press to turn it off" onClick={() => plan.setPlan(false)}>
      <Icon of={ListTodo} size="sm" />
      Plan
    </button>
  );
}
