/** Workers: the processes that run chats, and whether they are alive. */
import { useQuery } from "@tanstack/react-query";
import { api } from "@/api/client";
import { queryKeys } from "@/api/queries";
import { Meter, Tag, Time } from "@/components";
import { Loaded, readAll, Section, SettingsPage, Table } from "../frame";

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
