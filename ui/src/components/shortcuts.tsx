/** The list of shortcuts, and its dialog: loaded when somebody asks for it. */
import { BOX_KEYS, isMac, keyText, SHORTCUTS } from "@/platform/keys";
import { usePreference } from "@/platform/preferences";
import { HELP_PATH } from "@/platform/routes";
import { Dialog } from "./dialog";
import { Switch } from "./field";

const GROUPS = ["Everywhere", "Chats", "Messages", "Panels"] as const;

function KeyRow({ keys, text }: { keys: string; text: string }) {
  return (
    <div>
      <dt>{text}</dt>
      <dd>
        <kbd>{keyText(keys, isMac())}</kbd>
      </dd>
    </div>
  );
}

/** All shortcuts, and the switch for those of a single letter. */
export function ShortcutList() {
  const [singleKeys, setSingleKeys] = usePreference("singleKeys");
  return (
    <>
      <div className="app-shortcuts">
        {GROUPS.map((group) => (
          <section key={group}>
            <h3>{group}</h3>
            <dl>
              {SHORTCUTS.filter((shortcut) => shortcut.group === group).map((shortcut) => (
                <KeyRow key={shortcut.command} keys={shortcut.keys} text={shortcut.text} />
              ))}
            </dl>
          </section>
        ))}
        <section>
          <h3>Message box</h3>
          <dl>
            {BOX_KEYS.map((row) => (
              <KeyRow key={row.keys} keys={row.keys} text={row.text} />
            ))}
          </dl>
        </section>
      </div>
      <div className="app-shortcuts-switch">
        <span>
          Shortcuts of a single key <span className="tone-muted">work outside text boxes</span>
        </span>
        <Switch label="Shortcuts of a single key" checked={singleKeys} onChange={setSingleKeys} />
      </div>
    </>
  );
}

export function HelpDialog({ onClose }: { onClose: () => void }) {
  return (
    <Dialog open onOpenChange={onClose} title="Shortcuts" wide>
      <ShortcutList />
      <a className="ui-link" href={HELP_PATH} target="_blank" rel="noreferrer">
        Documentation of this version
      </a>
    </Dialog>
  );
}
