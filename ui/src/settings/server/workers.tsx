/** Workers: the processes that run chats, and whether they are alive. */
import { useQuery } from "@tanstack/react-query";
import { api } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { EmptyState, Meter, Tag, Time } from "@/components";
import { Loaded, readAll, Section, SettingsPage, Table, useResource } from "../frame";

export function WorkersPage() {
  const workers = useQuery({
    queryKey: queryKeys.settings("workers"),
    queryFn: () => readAll((query) => api.GET("/api/v1/workers", { query })),
    refetchInterval: 3000,
  });
  return (
    <SettingsPage title="Workers" lead="The processes that run chats. If one dies, another takes its chats within seconds; nothing that was saved is lost.">
      <Section title="Workers" hint={workers.data ? `${workers.data.filter((one) => one.is_alive).length} live` : undefined}>
        <Loaded query={workers}>
          {(list) => (
            <Table label="Workers" heads={["Worker", "Host", "Version", "Started", ">Chats", "Slots", "Lease renewed"]}>
              {list.map((worker) => (
                <tr key={worker.id}>
                  <td>
                    <span className="ui-strong">{worker.name}</span>{" "}
                    {!worker.is_alive ? <Tag tone="danger">dead</Tag> : worker.draining ? <Tag tone="warn">draining</Tag> : <Tag tone="ok">live</Tag>}
                  </td>
                  <td>{worker.host}</td>
                  <td>{worker.version}</td>
                  <td>
                    <Time at={worker.started_at} />
                  </td>
                  <td className="settings-right">{worker.chats}</td>
                  <td className="settings-meter">
                    <Meter label={`Slots of ${worker.name} in use`} value={worker.chats} max={worker.slots + worker.child_slots} />
                  </td>
                  <td>{(worker.renewed_ms_ago / 1000).toFixed(1)} s ago</td>
                </tr>
              ))}
            </Table>
          )}
        </Loaded>
      </Section>
    </SettingsPage>
  );
}

// Templates: what workspaces are made from. They are declared in the settings file.

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
            list.length === 0 ? (
              <EmptyState>No templates. Workspaces are switched off on this server.</EmptyState>
            ) : (
              <div className="settings-card">
                {list.map((one) => (
                  <TemplateRow key={one.id} listed={one} />
                ))}
              </div>
            )
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
          {template.display_name || template.name} <Tag>{template.origin === "builtin" ? "built in" : "chatd.toml"}</Tag>{" "}
          {template.deprecated && <Tag tone="warn">deprecated</Tag>}
        </div>
        <p className="tone-muted">{template.description}</p>
        {detail.data && <p className="tone-subtle">{factsOf(detail.data).join(" · ")}</p>}
      </div>
    </div>
  );
}
