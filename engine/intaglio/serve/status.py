"""The routes that tell of the server: /health, /metrics, /v1/models and /intaglio/effective."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from intaglio.serve import metrics
from intaglio.serve.api_error import ApiError
from intaglio.serve.keys import Caller
from intaglio.serve.service import Service


async def health(service: Service, _: Request, __: Caller) -> Response:
    """GET /health: 200 when requests are taken, else 503 with the reason. An answer at all means alive."""
    driver = service.current.driver
    status = "ok"
    if driver.failure:
        status = "engine_failed"
    elif driver.stalled_s > service.limits.stall_timeout_s:
        status = "engine_stalled"
    elif service.draining:
        status = "draining"
    ready = status == "ok"
    return JSONResponse({"live": True, "ready": ready, "status": status}, 200 if ready else 503)


async def models(service: Service, _: Request, __: Caller) -> Response:
    """GET /v1/models."""
    return JSONResponse({"object": "list", "data": [_model(service)]})


async def model(service: Service, request: Request, _: Caller) -> Response:
    """GET /v1/models/{id}."""
    service.check_model(request.path_params["id"])
    return JSONResponse(_model(service))


async def effective(service: Service, _: Request, __: Caller) -> Response:
    """GET /intaglio/effective: what really runs, as flat configuration paths, with the engine's counts so far."""
    deployment = service.current
    return JSONResponse(
        {
            "fingerprint": deployment.fingerprint,
            "effective": await deployment.effective(),
            "counters": deployment.engine.counters(),
            "gauges": deployment.engine.gauges(),
        }
    )


async def prometheus(service: Service, _: Request, __: Caller) -> Response:
    """GET /metrics."""
    text = "\n".join((*_engine_lines(service), *service.metrics.lines())) + "\n"
    return Response(text, media_type=metrics.CONTENT_TYPE)


def _engine_lines(service: Service) -> Iterable[str]:
    deployment = service.current
    counters, events, seconds_by_stage = service.totals()
    for name in sorted(counters):
        text = f"The engine's counter {name}."
        yield from metrics.labelled(f"intaglio_{name}_total", "counter", text, {(): counters[name]})
    for name, value in deployment.engine.gauges().items():
        yield from metrics.labelled(f"intaglio_{name}", "gauge", f"The engine's gauge {name}.", {(): value})
    places: dict[metrics.Labels, float] = {
        (("state", "taken"),): deployment.places.taken,
        (("state", "limit"),): deployment.places.limit,
    }
    yield from metrics.labelled(
        "intaglio_places", "gauge", "Requests held, and the most there may be.", places
    )
    kinds: dict[metrics.Labels, float] = {(("kind", kind),): count for kind, count in events.items()}
    yield from metrics.labelled("intaglio_events_total", "counter", "The engine's events by kind.", kinds)
    stages: dict[metrics.Labels, float] = {
        (("stage", stage), ("phase", phase)): seconds for (stage, phase), seconds in seconds_by_stage.items()
    }
    text = "Engine time by stage and phase (each request's share)."
    yield from metrics.labelled("intaglio_stage_seconds_total", "counter", text, stages)


def _model(service: Service) -> dict[str, object]:
    if not service.served_name:
        raise ApiError(404, "this server has no model", code="model_not_found", param="model")
    return {"id": service.served_name, "object": "model", "created": service.started, "owned_by": "intaglio"}
