/** Providers: the services that models come from, their keys, and a test call. */
import { CircleCheck, CircleDashed, CircleOff, Lock, type LucideIcon, Pencil, Plus, TriangleAlert } from "lucide-react";
import { useState } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import { Button, EmptyState, Icon, IconButton, Tag } from "@/components";
import { Loaded, readAll, Section, SettingsPage, useResource } from "../frame";
import { hostText, kindWords, ProviderDrawer, type ProviderTrial, TrialNote, useStartTrial, useTrial } from "./provider-drawer";

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
        end={
          <Button icon={Plus} onClick={() => setOpened("new")}>
            Add a provider
          </Button>
        }
      >
        <Loaded query={providers}>
          {(list) =>
            list.length === 0 ? (
              <EmptyState>No providers yet. Add one, and chats can use its models.</EmptyState>
            ) : (
              <div className="settings-card">
                {list.map((provider) => (
                  <ProviderRow key={provider.id} provider={provider} onEdit={() => setOpened(provider)} />
                ))}
              </div>
            )
          }
        </Loaded>
      </Section>
      {opened !== null && (
        <ProviderDrawer key={opened === "new" ? "new" : opened.id} provider={opened === "new" ? null : opened} onClose={() => setOpened(null)} />
      )}
    </SettingsPage>
  );
}

/** Icon, its colour and its name: green only after a test that succeeded. */
function signOf(provider: Provider, last: ProviderTrial | null): [LucideIcon, string, string] {
  if (!provider.enabled) return [CircleOff, "tone-subtle", "Disabled"];
  if (last?.state === "error" || (last?.state === "ended" && !last.trial.ok)) return [TriangleAlert, "tone-danger", "Failed"];
  if (last?.state === "ended" || provider.kind === "demo") return [CircleCheck, "tone-ok", "Works"];
  return [CircleDashed, "tone-subtle", "Enabled, not tested"];
}

function ProviderRow({ provider, onEdit }: { provider: Provider; onEdit: () => void }) {
  const last = useTrial(provider.id);
  const startTrial = useStartTrial();
  const [sign, tone, words] = signOf(provider, last);
  const editable = provider.source === "database";
  return (
    <div className="settings-resource">
      <Icon of={sign} className={tone} label={words} />
      <div className="ui-grow">
        <h3>
          {provider.display_name}
          <Tag>{kindWords(provider.kind)?.api ?? provider.kind}</Tag>
          {!editable && provider.kind !== "demo" && <Tag icon={Lock}>{provider.source === "settings" ? "chatd.toml" : "environment"}</Tag>}
          {!provider.enabled && <Tag>disabled</Tag>}
        </h3>
        <p>{factsOf(provider, editable).join(" · ")}</p>
      </div>
      <div className="ui-actions">
        <Button size="sm" busy={last?.state === "running"} onClick={() => startTrial(provider.id)}>
          Test
        </Button>
        {editable && <IconButton icon={Pencil} label={`Edit ${provider.display_name}`} onClick={onEdit} />}
      </div>
      <TrialNote last={last} onNewKey={editable ? onEdit : undefined} />
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
