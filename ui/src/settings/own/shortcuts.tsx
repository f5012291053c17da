import { ShortcutList } from "@/components";
import { Section, SettingsPage } from "../frame";

export function ShortcutsPage() {
  return (
    <SettingsPage title="Shortcuts" lead="Everything on the page can be done with the keyboard.">
      <Section title="Keys">
        <div className="settings-card settings-padded">
          <ShortcutList />
        </div>
      </Section>
    </SettingsPage>
  );
}
