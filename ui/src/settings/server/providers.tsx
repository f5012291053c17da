/** Providers: the services that models come from, their keys, and a test call. */
import { CircleCheck, CircleOff, Lock, Pencil, Plus, TriangleAlert } from "lucide-react";
import { useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, EmptyState, ErrorNote, Icon, IconButton, Tag } from "@/components";
import { Loaded, Section, SettingsPage } from "../frame";
import { hostText, kindWords } from "./provider-kinds";
import { ProviderDrawer } from "./provider-drawer";
import { readAll, useResource, useSave } from "../resource";
import { TrialResult } from "./trial-result";

export type Provider = components["schemas"]["ProviderReply"];

export const useProviders = () =>
  useResource(["providers"], () => readAll((query) => api.GET("/api/v1/providers", { query: { ...query, include_disabled: true } })));

/** What is open: nothing, a new provider, or one of the list. */
type Opened = Provider | "new" | null;

export function ProvidersPage() {
  const providers = useProviders();
  const [opened, setOpened] = useState<Opened>(null);
  return (
    <SettingsPage title="Providers" lead="The services that answer. Keys are stored encrypted and never shown again.">
      <Section
        title="Providers"
        end={<Button icon={Plus} onClick={() => setOpened("new")}>Add a provider</Button>}
      >
        <Loaded query={providers}>
          {(list) =>
            list.length === 0 ? (
              <EmptyState>No providers yet. Add one, and chats can use its models.</EmptyState>
            ) : (
              <div className="cardx">
                {list.map((provider) => (
                  <ProviderRow key={provider.id} provider={provider} onEdit={() => setOpened(provider)} />
                ))}
              </div>
            )
          }
        </Loaded>
      </Section>
      {opened !== null && (
        <ProviderDrawer
          key={opened === "new" ? "new" : opened.id}
          provider={opened === "new" ? null : opened}
          onClose={() => setOpened(null)}
        />
      )}
    </SettingsPage>
  );
}

function ProviderRow({ provider, onEdit }: { provider: Provider; onEdit: () => void }) {
  const trial = useSave(
    () => api.POST("/api/v1/providers/{provider_id}/test", { path: { provider_id: provider.id }, body: {}, timeoutMs: 120_000 }),
    { refresh: [], quiet: true },
  );
  const failed = trial.data?.ok === false || trial.error !== null;
  const editable = provider.source === "database";
  return (
    <div className="prov">
      <Icon
        of={!provider.enabled ? CircleOff : failed ? TriangleAlert : CircleCheck}
        className={!provider.enabled ? "s" : failed ? "danger" : "ok"}
        label={!provider.enabled ? "Disabled" : failed ? "Failed" : "Enabled"}
      />
      <div className="grow">
        <h3>
          {provider.display_name}
          <Tag>{kindWords(provider.kind)?.api ?? provider.kind}</Tag>
          {!editable && provider.kind !== "demo" && <Tag icon={Lock}>{provider.source === "settings" ? "chatd.toml" : "environment"}</Tag>}
          {!provider.enabled && <Tag>disabled</Tag>}
        </h3>
        <p>{factsOf(provider, editable).join(" · ")}</p>
      </div>
      <div className="acts">
        <Button size="sm" busy={trial.isPending} onClick={() => trial.mutate(undefined)}>Test</Button>
        {editable && <IconButton icon={Pencil} label={`Edit ${provider.display_name}`} onClick={onEdit} />}
      </div>
      {trial.error !== null && <div className="result bad"><ErrorNote error={trial.error} /></div>}
      {trial.data && <TrialResult trial={trial.data} {...(editable ? { onNewKey: onEdit } : {})} />}
    </div>
  );
}

function factsOf(provider: Provider, editable: boolean): string[] {
  if (provider.kind === "demo") return ["needs no key", "answers by a script, in this process"];
  const facts = [hostText(provider.base_url), keyText(provider), editable ? "" : changeText(provider)];
  return facts.filter((fact) => fact !== "");
}

function keyText(provider: Provider): string {
  if (kindWords(provider.kind)?.takesKey === false) return provider.has_aws_credentials === true ? "own credentials" : "";
  const keys = provider.keys ?? [];
  const [first] = keys;
  if (first === undefined) return provider.has_api_key ? "has a key" : "no key";
  return keys.length === 1 ? `key ${first.masked}` : `${keys.length} keys`;
}

const changeText = (provider: Provider): string =>
  provider.source === "settings" ? "change it in the settings file" : "change it in the environment of the server";
