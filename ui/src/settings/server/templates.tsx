/** Templates: what workspaces are made from. They are declared in the settings file. */
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { EmptyState, Tag } from "@/components";
import { Loaded, Section, SettingsPage } from "../frame";
import { readAll, useResource } from "../resource";

type Template = components["schemas"]["TemplateReply"];

type Listed = Omit<Template, "readme" | "parameters" | "seed" | "network" | "limits" | "env" | "has_startup_script" | "startup_timeout_s" | "directory">;

const GIB = 2 ** 30;

export function TemplatesPage() {
  const templates = useResource(["templates"], () => readAll((query) => api.GET("/api/v1/templates", { query })));
  return (
    <SettingsPage title="Templates" lead="What workspaces are made from. They are declared in chatd.toml, under [[templates]].">
      <Section title="Templates">
        <Loaded query={templates}>
          {(list) =>
            list.length === 0 ? <EmptyState>No templates. Workspaces are switched off on this server.</EmptyState> : <div className="settings-card">{list.map((one) => <TemplateRow key={one.id} listed={one} />)}</div>
          }
        </Loaded>
      </Section>
    </SettingsPage>
  );
}

function factsOf(template: Template): string[] {
  const { limits } = template;
  return [
    template.network === "none" ? "no network" : "full network",
    ...(limits.memory_bytes === undefined ? [] : [`${(limits.memory_bytes / GIB).toFixed(1)} GiB of memory`]),
    ...(limits.disk_bytes === undefined ? [] : [`${(limits.disk_bytes / GIB).toFixed(0)} GiB of disk`]),
    template.default_ttl_s > 0 ? `stops after ${Math.round(template.default_ttl_s / 3600)} h without use` : "never stops by itself",
  ];
}

function TemplateRow({ listed }: { listed: Listed }) {
  const detail = useResource(["template", listed.id], () => api.GET("/api/v1/templates/{template_id}", { path: { template_id: listed.id } }));
  const template = detail.data ?? listed;
  return (
    <div className="settings-row">
      <div className="ui-grow">
        <div className="ui-strong">
          {template.display_name || template.name} <Tag>{template.origin === "builtin" ? "built in" : "chatd.toml"}</Tag> {template.deprecated && <Tag tone="warn">deprecated</Tag>}
        </div>
        <p className="tone-muted">{template.description}</p>
        {detail.data && <p className="tone-subtle">{factsOf(detail.data).join(" · ")}</p>}
      </div>
    </div>
  );
}
