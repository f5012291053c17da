"""Routes of providers and their keys, for administrators, and of a user's own keys."""

from typing import Final, cast

from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, Paging, cut_whole, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.messages import from_rows
from chatd.domain.list_page import ListQuery
from chatd.services.models.model_bodies import ModelsQuery, Source
from chatd.services.models.provider_bodies import (
    CreateKeyBody,
    CreateProviderBody,
    DroppedSecretsReply,
    KeyReply,
    OfferedModelPage,
    ProviderPage,
    ProviderReply,
    TrialBody,
    TrialReply,
    UpdateKeyBody,
    UpdateProviderBody,
    UserKeyBody,
    UserKeyPage,
    UserKeyReply,
    convert_key,
)
from chatd.store.model.providers import StoredProvider

CREATE: Final = BodySpec(CreateProviderBody)
UPDATE: Final = BodySpec(UpdateProviderBody)
CREATE_KEY: Final = BodySpec(CreateKeyBody)
UPDATE_KEY: Final = BodySpec(UpdateKeyBody)
TRIAL: Final = BodySpec(TrialBody)
USER_KEY: Final = BodySpec(UserKeyBody)


SECRET_CODES: Final = ("secret_key_missing", "secret_unreadable")


class ProviderRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._models = deps.models
        self._author = deps.author
        self._providers = deps.provider_administration
        self._user_keys = deps.user_keys
        self._calls = deps.provider_trials

    def routes(self) -> tuple[ApiRoute, ...]:
        return (*self._provider_routes(), *self._key_routes(), *self._user_key_routes())

    def _provider_routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /providers",
                permission="config.read",
                summary="List providers, without their secrets",
                description="Those of the settings, of the environment and of the database."
                " `source` tells which; only those of the database can be changed over the API."
                " Secrets are never returned.",
                handle=self.list_providers,
                query=ModelsQuery,
                replies={200: ProviderPage},
            ),
            ApiRoute(
                endpoint="POST /providers",
                permission="config.write",
                summary="Create a provider",
                description="Every replica knows it within a second. A name that only stopped"
                " servers have declared is taken over with its id. Test it with `POST"
                " /providers/{provider_id}/test`.",
                handle=self.create_provider,
                body_spec=CREATE,
                replies={201: ProviderReply},
                errors=(*SECRET_CODES, "name_taken", "managed_by_settings"),
            ),
            ApiRoute(
                endpoint="GET /providers/{provider_id}",
                permission="config.read",
                summary="Get a provider, without its secrets",
                description="Of keys only the end is shown, of headers only the names.",
                handle=self.get_provider,
                replies={200: ProviderReply},
            ),
            ApiRoute(
                endpoint="PATCH /providers/{provider_id}",
                permission="config.write",
                summary="Change a provider",
                description="The next model call uses it, on every replica. A running call ends"
                " normally; a call of a disabled provider fails with `provider_disabled`. A key is"
                " sent only to the address that it was given for: after a change of scheme, host or"
                " port (of a plain address also of the proxy), `dropped` counts the secrets that"
                " the request did not contain again.",
                handle=self.update_provider,
                body_spec=UPDATE,
                replies={200: ProviderReply},
                errors=(*SECRET_CODES, "name_taken", "managed_by_settings"),
            ),
            ApiRoute(
                endpoint="DELETE /providers/{provider_id}",
                permission="config.write",
                summary="Delete a provider that no model uses, with its keys",
                description="The error names the models that use it.",
                handle=self.delete_provider,
                replies={204: None},
                errors=("provider_in_use", "managed_by_settings"),
            ),
            ApiRoute(
                endpoint="POST /providers/{provider_id}/test",
                permission="config.write",
                summary="Make one small call to a provider, and explain its failure",
                description="Takes at most half a minute. A failed call is a reply of status"
                " 200 with `ok` false and an explanation: the key, the address, a missing `/v1`,"
                " the model, TLS, the proxy or a time-out.",
                handle=self.test_provider,
                body_spec=TRIAL,
                replies={200: TrialReply},
                errors=("provider_failed",),
            ),
            ApiRoute(
                endpoint="GET /providers/{provider_id}/models",
                permission="config.read",
                summary="List the models that a provider offers, as it tells them now",
                description="Asks the provider now. What it tells of configured models is kept"
                " as their capabilities.",
                handle=self.list_offered_models,
                query=ListQuery,
                replies={200: OfferedModelPage},
                errors=("provider_failed",),
            ),
        )

    def _key_routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="POST /providers/{provider_id}/keys",
                permission="config.write",
                summary="Add a key to a provider; it is used after the others",
                description="Keys are used in their order. A key that the provider refuses or"
                " limits rests for a while, and the same call goes on with the next one.",
                handle=self.create_provider_key,
                body_spec=CREATE_KEY,
                replies={201: KeyReply},
                errors=(*SECRET_CODES, "too_many_keys", "managed_by_settings"),
            ),
            ApiRoute(
                endpoint="PATCH /providers/{provider_id}/keys/{key_id}",
                permission="config.write",
                summary="Replace or rename a key",
                description="The key keeps its id and its place.",
                handle=self.update_provider_key,
                body_spec=UPDATE_KEY,
                replies={200: KeyReply},
                errors=(*SECRET_CODES, "managed_by_settings"),
            ),
            ApiRoute(
                endpoint="DELETE /providers/{provider_id}/keys/{key_id}",
                permission="config.write",
                summary="Delete a key",
                description="The next model call does not use it any more.",
                handle=self.delete_provider_key,
                replies={204: None},
                errors=("managed_by_settings",),
            ),
        )

    def _user_key_routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /user-keys",
                permission="account.read",
                summary="List providers that take keys of users, with the caller's own",
                description="A chat uses the key of its owner first, then those of the provider.",
                handle=self.list_user_keys,
                query=ListQuery,
                replies={200: UserKeyPage},
            ),
            ApiRoute(
                endpoint="POST /user-keys",
                permission="account.write",
                summary="Add or replace the caller's key for a provider",
                description="The provider must take keys of users. The key is used for the"
                " caller's chats only.",
                handle=self.set_user_key,
                body_spec=USER_KEY,
                replies={201: UserKeyReply},
                errors=SECRET_CODES,
            ),
            ApiRoute(
                endpoint="DELETE /user-keys/{key_id}",
                permission="account.write",
                summary="Delete a key of the caller's own",
                description="The caller's chats then use the keys of the provider, if it has any.",
                handle=self.delete_user_key,
                replies={204: None},
            ),
        )

    async def list_providers(self, request: ApiRequest) -> ApiReply:
        query = request.query(ModelsQuery)
        paging = Paging(request, query, ItemPosition)
        every = await self._models.providers()
        found = [one for one in every if one.enabled or query.include_disabled]
        shown, cursor = cut_whole(paging, found, lambda row: row.id)
        return page_reply(ProviderPage, map(_public, shown), cursor)

    async def create_provider(self, request: ApiRequest) -> ApiReply:
        body = await request.body(CREATE)
        return reply(
            _public(await self._providers.create_provider(self._author(request), body)), 201
        )

    async def get_provider(self, request: ApiRequest) -> ApiReply:
        return reply(_public(await self._providers.get_provider(request.provider_id)))

    async def update_provider(self, request: ApiRequest) -> ApiReply:
        body = await request.body(UPDATE)
        provider, dropped = await self._providers.update_provider(
            self._author(request), request.provider_id, body
        )
        return reply(_public(provider, dropped))

    async def delete_provider(self, request: ApiRequest) -> ApiReply:
        await self._providers.delete_provider(self._author(request), request.provider_id)
        return NO_CONTENT

    async def test_provider(self, request: ApiRequest) -> ApiReply:
        body = await request.body(TRIAL)
        return reply(await self._calls.test(request.provider_id, body.model, body.key_id))

    async def list_offered_models(self, request: ApiRequest) -> ApiReply:
        query = request.query(ListQuery)
        paging = Paging(request, query, str)
        every = await self._calls.list_offers(request.provider_id)
        after = paging.position
        found = [one for one in every if after is None or one.model > after]
        shown, cursor = paging.cut(found[: paging.read_limit], lambda one: one.model)
        return page_reply(OfferedModelPage, shown, cursor)

    async def create_provider_key(self, request: ApiRequest) -> ApiReply:
        body = await request.body(CREATE_KEY)
        return reply(
            convert_key(
                await self._providers.add_key(self._author(request), request.provider_id, body)
            ),
            201,
        )

    async def update_provider_key(self, request: ApiRequest) -> ApiReply:
        body = await request.body(UPDATE_KEY)
        key = await self._providers.update_key(
            self._author(request), request.provider_id, request.key_id, body
        )
        return reply(convert_key(key))

    async def delete_provider_key(self, request: ApiRequest) -> ApiReply:
        await self._providers.delete_key(self._author(request), request.provider_id, request.key_id)
        return NO_CONTENT

    async def list_user_keys(self, request: ApiRequest) -> ApiReply:
        query = request.query(ListQuery)
        paging = Paging(request, query, ItemPosition)
        every = await self._user_keys.list_user_keys(request.caller.user_id)
        shown, cursor = cut_whole(paging, every, lambda one: one.provider_id)
        return page_reply(UserKeyPage, shown, cursor)

    async def set_user_key(self, request: ApiRequest) -> ApiReply:
        body = await request.body(USER_KEY)
        return reply(
            await self._user_keys.set_user_key(self._author(request), request.caller.user_id, body),
            201,
        )

    async def delete_user_key(self, request: ApiRequest) -> ApiReply:
        await self._user_keys.delete_user_key(
            self._author(request), request.caller.user_id, request.key_id
        )
        return NO_CONTENT


def _public(known: StoredProvider, dropped: DroppedSecretsReply | None = None) -> ProviderReply:
    told = known.parameters
    return from_rows(
        ProviderReply,
        known,
        told,
        display_name=known.display_name or known.name,
        source=cast("Source", known.source),
        keys=tuple(map(convert_key, known.keys)),
        dropped=dropped,
    )
