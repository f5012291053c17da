/** Templates: what workspaces are made from. Administrators make and change them here; presets are read-only. */
import "@/styles/administration.css";
import { Box, Copy, History, Lock, Package, Pencil, Plus } from "lucide-react";
import { useState } from "react";
import { api } from "@/api/client";
import { useMe } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button, Drawer, EmptyState, ErrorNote, Icon, IconButton, Skeleton, Tag, Time } from "@/components";
import { plural } from "@/platform/words";
import { Loaded, readAll, Section, SettingsPage, useResource, useSave } from "../frame";
import { canChange, canDelete, compareVersions, factsOf, type ListedTemplate, ORIGINS, type TemplateConfig } from "./template-draft";
import { TemplateDrawer, TEMPLATES_CHANGED } from "./template-drawer";

type Version = components["schemas"]["TemplateVersionItem"];

/** What is open beside the list. */
type Opened = { kind: "new" } | { kind: "edit" | "duplicate" | "versions"; template: ListedTemplate } | null;

const readTemplate = (id: string): Promise<TemplateConfig> => api.GET("/api/v1/template-configs/{template_id}", { path: { template_id: id } });

export function TemplatesPage() {
  const templates = useResource(["templates"], () => readAll((query) => api.GET("/api/v1/template-configs", { query })));
  const [opened, setOpened] = useState<Opened>(null);
  const canEdit = useMe().data?.user.role === "admin";
  const close = () => setOpened(null);
  const names = (templates.data ?? []).map((one) => one.name);
  // The same for all templates whose workspaces run on the server itself.
  const missing = templates.data?.find((one) => one.missing_packages.length > 0)?.missing_packages ?? [];
  return (
    <SettingsPage
      title="Templates"
      lead="What workspaces are made from. Every command in a workspace can read its environment, and so can the model: keep secrets out of templates."
    >
      <Section
        title="Templates"
        end={
          canEdit && (
            <Button icon={Plus} onClick={() => setOpened({ kind: "new" })}>
              Add a template
            </Button>
          )
        }
      >
        <Loaded query={templates}>
          {(list) =>
            list.length === 0 ? (
              <EmptyState icon={Package}>No templates yet. Add one, and chats can create workspaces from it.</EmptyState>
            ) : (
              <div className="settings-card">
                {list.map((one) => (
                  <TemplateRow key={one.id} template={one} canEdit={canEdit} onOpen={(kind) => setOpened({ kind, template: one })} />
                ))}
              </div>
            )
          }
        </Loaded>
      </Section>
      {opened?.kind === "new" && <TemplateDrawer source={null} names={names} missing={missing} onClose={close} />}
      {(opened?.kind === "edit" || opened?.kind === "duplicate") && (
        <LoadedDrawer key={opened.template.id} listed={opened.template} isCopy={opened.kind === "duplicate"} names={names} missing={missing} onClose={close} />
      )}
      {opened?.kind === "versions" && <VersionsDrawer template={opened.template} canEdit={canEdit} onClose={close} />}
    </SettingsPage>
  );
}

function TemplateRow({ template, canEdit, onOpen }: { template: ListedTemplate; canEdit: boolean; onOpen: (kind: "edit" | "duplicate" | "versions") => void }) {
  const title = template.display_name || template.name;
  return (
    <div className="settings-resource">
      <Icon of={Box} className="tone-subtle" />
      <div className="ui-grow">
        <h3>
          {title}
          {title.toLowerCase() !== template.name.toLowerCase() && <Tag>{template.name}</Tag>}
          {ORIGINS[template.origin] !== "" && <Tag icon={Lock}>{ORIGINS[template.origin]}</Tag>}
          {template.deprecated && <Tag tone="warn">no longer in chatd.toml</Tag>}
          {!template.agents_allowed && <Tag>not for chats</Tag>}
        </h3>
        {template.description !== "" && <p>{template.description}</p>}
        <p>{factsOf(template)}</p>
      </div>
      <div className="ui-actions">
        <IconButton icon={History} label={`Versions of ${title}`} onClick={() => onOpen("versions")} />
        {canEdit && <IconButton icon={Copy} label={`Duplicate ${title}`} onClick={() => onOpen("duplicate")} />}
        {canEdit && canDelete(template) && <IconButton icon={Pencil} label={`Edit ${title}`} onClick={() => onOpen("edit")} />}
      </div>
    </div>
  );
}

interface LoadedProps {
  listed: ListedTemplate;
  isCopy: boolean;
  names: readonly string[];
  missing: readonly string[];
  onClose: () => void;
}

/** The form opens with what the server has now, not with what the list was made from. */
function LoadedDrawer({ listed, isCopy, names, missing, onClose }: LoadedProps) {
  const template = useResource(["template", listed.id, listed.updated_at], () => readTemplate(listed.id));
  if (template.data !== undefined) return <TemplateDrawer source={template.data} isCopy={isCopy} names={names} missing={missing} onClose={onClose} />;
  return (
    <Drawer open onOpenChange={onClose} title={listed.display_name || listed.name}>
      <div className="settings-template-versions">{template.error === null ? <Skeleton rows={5} /> : <ErrorNote error={template.error} />}</div>
    </Drawer>
  );
}

// Versions

const readVersion = (template: string, id: string) =>
  api.GET("/api/v1/template-configs/{template_id}/versions/{version_id}", { path: { template_id: template, version_id: id } });

function VersionsDrawer({ template, canEdit, onClose }: { template: ListedTemplate; canEdit: boolean; onClose: () => void }) {
  const versions = useResource(["template-versions", template.id], () =>
    readAll((query) => api.GET("/api/v1/template-configs/{template_id}/versions", { path: { template_id: template.id }, query })),
  );
  const [compared, setCompared] = useState<string | null>(null);
  const activate = useSave(
    (id: string) => api.POST("/api/v1/template-configs/{template_id}/versions/{version_id}/activate", { path: { template_id: template.id, version_id: id } }),
    { refresh: TEMPLATES_CHANGED, quiet: true, done: "New workspaces get this version." },
  );
  return (
    <Drawer open onOpenChange={onClose} title={`Versions of ${template.display_name || template.name}`}>
      <div className="settings-template-versions">
        {activate.error !== null && <ErrorNote error={activate.error} />}
        <Loaded query={versions}>
          {(list) => {
            const active = list.find((one) => one.is_active);
            return (
              <ul className="settings-card" aria-label="Versions">
                {list.map((one) => (
                  <li key={one.id} className="settings-resource">
                    <Icon of={History} className="tone-subtle" />
                    <div>
                      <h3>
                        Version {one.number} {one.is_active && <Tag tone="ok">active</Tag>}
                      </h3>
                      <p>
                        <Time at={one.created_at} /> · {plural(one.workspace_count, "workspace")}
                      </p>
                    </div>
                    <div className="ui-actions">
                      {active !== undefined && !one.is_active && (
                        <Button size="sm" variant="quiet" aria-expanded={compared === one.id} onClick={() => setCompared(compared === one.id ? null : one.id)}>
                          Compare
                        </Button>
                      )}
                      {canEdit && canChange(template) && !one.is_active && (
                        <Button size="sm" busy={activate.isPending && activate.variables === one.id} onClick={() => activate.mutate(one.id)}>
                          Make active
                        </Button>
                      )}
                    </div>
                    {active !== undefined && compared === one.id && <Comparison template={template.id} active={active} other={one} />}
                  </li>
                ))}
              </ul>
            );
          }}
        </Loaded>
      </div>
    </Drawer>
  );
}

/** What would change if the other version became the active one. */
function Comparison({ template, active, other }: { template: string; active: Version; other: Version }) {
  const both = useResource(["template-version", template, active.id, other.id], () =>
    Promise.all([readVersion(template, active.id), readVersion(template, other.id)]),
  );
  return (
    <div className="ui-result">
      <div className="ui-grow">
        <Loaded query={both}>
          {([before, after]) => {
            const lines = compareVersions(before, after);
            if (lines.length === 0) return <p>Nothing differs.</p>;
            const label = `Version ${active.number} compared with version ${other.number}`;
            return (
              <>
                <p>
                  From version {active.number}, which is active, to version {other.number}:
                </p>
                <div className="settings-prompt-diff" tabIndex={0} role="region" aria-label={label}>
                  {lines.map((line, place) => {
                    if (line === null)
                      return (
                        <span key={place} className="settings-template-gap" aria-label="equal lines are left out" role="img">
                          ⋯
                        </span>
                      );
                    const Shown = line.type === "add" ? "ins" : line.type === "del" ? "del" : "span";
                    return <Shown key={place}>{line.text === "" ? " " : line.text}</Shown>;
                  })}
                </div>
              </>
            );
          }}
        </Loaded>
      </div>
    </div>
  );
}
