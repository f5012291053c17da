import { ListTodo, Paperclip, Plus } from "lucide-react";
import { Icon, IconButton, Menu, MenuChoice, MenuItem } from "@/components";
import type { PlanChoice } from "./use-mode";

interface PlusMenuProps {
  plan: PlanChoice;
  onAttach: () => void;
}

/** What can be added to the message, and how the chat works. */
export function PlusMenu({ plan, onAttach }: PlusMenuProps) {
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
    </Menu>
  );
}

/** Shown while the chat plans; a press ends it. */
export function PlanButton({ plan }: { plan: PlanChoice }) {
  if (!plan.isPlan) return null;
  return (
    <button type="button" className="pick on" aria-pressed="true" aria-label="Plan mode; press to turn it off" onClick={() => plan.setPlan(false)}>
      <Icon of={ListTodo} size="sm" />
      Plan
    </button>
  );
}
