/** Skills of the user: instructions that a model reads when they fit. */
import { BookOpen, Pencil, Plus, Trash2 } from "lucide-react";
import { type SyntheticEvent, useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, ConfirmDialog, Drawer, EmptyState, ErrorNote, Field, IconButton, TextField, Time } from "@/components";
import { Loaded, readAll, Section, SettingsPage, Table, useResource, useSave } from "../frame";
import { fieldErrors } from "../server/provider-drawer";

type Listed = components["schemas"]["ListedSkill"];

export function SkillsPage() {
  const skills = useResource(["skills"], () => readAll((query) => api.GET("/api/v1/skills", { query })));
  const [opened, setOpened] = useState<Listed | "new" | null>(null);
  const [deleting, setDeleting] = useState<Listed | null>(null);
  return (
    <SettingsPage title="Skills" lead="Instructions for a kind of task. Your chats know their names and descriptions, and read one when it fits.">
      <Section
        title="Your skills"
        end={
          <Button icon={Plus} onClick={() => setOpened("new")}>
            Add a skill
          </Button>
        }
      >
        <Loaded query={skills}>
          {(list) =>
            list.length === 0 ? (
              <EmptyState icon={BookOpen}>No skills yet. Write one for what you explain again and again.</EmptyState>
            ) : (
              <Table label="Skills" heads={["Name", "When to use it", ">Changed", ""]}>
                {list.map((skill) => (
                  <tr key={skill.id}>
                    <td>
                      <code>{skill.name}</code>
                    </td>
                    <td>{skill.description}</td>
                    <td className="settings-right">
                      <Time at={skill.updated_at} />
                    </td>
                    <td className="settings-right">
                      <IconButton icon={Pencil} label={`Edit ${skill.name}`} onClick={() => setOpened(skill)} />
                      <IconButton icon={Trash2} label={`Delete ${skill.name}`} onClick={() => setDeleting(skill)} />
                    </td>
                  </tr>
                ))}
              </Table>
            )
          }
        </Loaded>
      </Section>
      {opened !== null && <SkillDrawer key={opened === "new" ? "new" : opened.id} skill={opened === "new" ? null : opened} onClose={() => setOpened(null)} />}
      {deleting !== null && <DeleteDialog skill={deleting} onClose={() => setDeleting(null)} />}
    </SettingsPage>
  );
}

function DeleteDialog({ skill, onClose }: { skill: Listed; onClose: () => void }) {
  const remove = useSave(() => api.DELETE("/api/v1/skills/{skill_id}", { path: { skill_id: skill.id } }), { refresh: [["skills"]], quiet: true });
  return (
    <ConfirmDialog
      open
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title={`Delete ${skill.name}?`}
      description="Chats that have read it keep what they read."
      action="Delete"
      onConfirm={() => remove.mutateAsync(undefined)}
    />
  );
}

function SkillDrawer({ skill, onClose }: { skill: Listed | null; onClose: () => void }) {
  const stored = useResource(["skills", skill?.id ?? "new"], () =>
    skill === null ? Promise.resolve({ name: "", description: "", body: "" }) : api.GET("/api/v1/skills/{skill_id}", { path: { skill_id: skill.id } }),
  );
  return (
    <Drawer
      open
      onOpenChange={(open) => {
        if (!open) onClose();
      }}
      title={skill === null ? "Add a skill" : `Edit ${skill.name}`}
      footer={
        <>
          <Button type="submit" form="skill" variant="primary">
            Save
          </Button>
          <Button variant="quiet" onClick={onClose}>
            Discard
          </Button>
        </>
      }
    >
      <Loaded query={stored}>{(first) => <SkillForm id={skill?.id ?? null} first={first} onClose={onClose} />}</Loaded>
    </Drawer>
  );
}

interface SkillText {
  name: string;
  description: string;
  body: string;
}

function SkillForm({ id, first, onClose }: { id: string | null; first: SkillText; onClose: () => void }) {
  const [draft, setDraft] = useState<SkillText>({ name: first.name, description: first.description, body: first.body });
  const saving = useSave(
    (body: SkillText) => (id === null ? api.POST("/api/v1/skills", { body }) : api.PATCH("/api/v1/skills/{skill_id}", { path: { skill_id: id }, body })),
    { refresh: [["skills"]], quiet: true, done: "Saved. The next step of your chats knows it.", onDone: onClose },
  );
  const wrong = fieldErrors(saving.error);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    saving.mutate(draft);
  };
  return (
    <form id="skill" className="settings-form" onSubmit={submit}>
      <TextField
        label="Name"
        wide
        required
        placeholder="release-notes"
        value={draft.name}
        error={wrong.get("name")}
        onChange={(event) => setDraft({ ...draft, name: event.target.value })}
      />
      <TextField
        label="When to use it"
        wide
        required
        placeholder="When the user asks for release notes"
        value={draft.description}
        error={wrong.get("description")}
        onChange={(event) => setDraft({ ...draft, description: event.target.value })}
      />
      <Field label="Instructions" wide hint="Markdown. The model reads them whole." error={wrong.get("body")}>
        {(names) => (
          <textarea
            {...names}
            className="ui-textarea"
            rows={16}
            required
            value={draft.body}
            onChange={(event) => setDraft({ ...draft, body: event.target.value })}
          />
        )}
      </Field>
      {saving.error !== null && (
        <div className="ui-form-field is-wide">
          <ErrorNote error={saving.error} />
        </div>
      )}
    </form>
  );
}
