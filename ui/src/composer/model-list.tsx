/** The models to choose from, and the efforts of the chosen one: loaded when the list is opened. */
import { Check, Search } from "lucide-react";
import { useState } from "react";
import { effortName, effortsOf } from "@/api/queries";
import type { Effort } from "@/chat-state/outbox";
import { classes, Icon, Segmented } from "@/components";
import { groupModels, priceText, sizeText } from "./model-choice";
import type { ModelPickerProps } from "./model-picker";

export function ModelList({ models, model, effort, efforts, onModel, onEffort, onOpenChange }: ModelPickerProps & { efforts: readonly Effort[] }) {
  const [query, setQuery] = useState("");
  const groups = groupModels(models, query);
  return (
    <>
      <label className="ui-field">
        <Icon of={Search} size="sm" className="tone-subtle" />
        <input
          type="search"
          aria-label="Find a model"
          placeholder="Find a model"
          value={query}
          onChange={(event) => setQuery(event.target.value)}
          onKeyDown={(event) => {
            const first = groups[0]?.models[0];
            if (event.key !== "Enter" || first === undefined) return;
            onModel(first);
            onOpenChange(false);
          }}
        />
      </label>
      <div className="composer-model-list">
        {groups.length === 0 && <p className="composer-none">{models.length === 0 ? "No models are set up." : `No model fits "${query}".`}</p>}
        {groups.map((group) => (
          <section key={group.provider} aria-label={group.provider}>
            <h5>{group.provider}</h5>
            {group.models.map((one) => (
              <button
                key={one.id}
                type="button"
                className={classes("ui-menu-item", one.id === model?.id && "is-on")}
                aria-pressed={one.id === model?.id}
                onClick={() => {
                  onModel(one);
                  if (effortsOf(one).length === 0) onOpenChange(false);
                }}
              >
                {one.id === model?.id ? <Icon of={Check} /> : <span />}
                <b className="ui-ellipsis">{one.display_name}</b>
                <span className="tone-subtle ui-number">{sizeText(one)}</span>
                {priceText(one) !== "" && <p>{priceText(one)}</p>}
              </button>
            ))}
          </section>
        ))}
      </div>
      {efforts.length > 0 && (
        <>
          <hr />
          <div className="composer-effort-pick">
            <span>Reasoning effort</span>
            <Segmented
              label="Reasoning effort"
              options={efforts.map((one) => ({ value: one, label: effortName(one) }))}
              value={effort ?? efforts[0] ?? "none"}
              onChange={(value) => onEffort(value)}
            />
          </div>
        </>
      )}
    </>
  );
}
