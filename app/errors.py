"""What can go wrong with a request, and how each dialect says it.

ApiError
├── InvalidRequest      400  the server cannot do what the request asks
│   └── ModelNotFound   404
├── Overloaded          429 / 503 with Retry-After
└── ServerError         500  the request was right, the server failed
    └── Unavailable     503  no replica can serve now
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .dialects import Dialect

_MAX_ERRORS = 10
_MAX_INPUT = 100


class ApiError(Exception):
    status = 500
    type = "internal_server_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    @property
    def headers(self) -> Mapping[str, str]:
        return {}


class InvalidRequest(ApiError):
    status = 400
    type = "invalid_request_error"


class ModelNotFound(InvalidRequest):
    status = 404

    def __init__(self, model: str) -> None:
        super().__init__(f"The model '{model}' does not exist", param="model", code="model_not_found")


class Overloaded(ApiError):
    type = "rate_limit_error"

    def __init__(self, status: int, retry_after_s: float | None) -> None:
        super().__init__("The server is busy, try again later", code="overloaded")
        self.status = status
        self._retry_after_s = retry_after_s or 1

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Retry-After": str(max(1, round(self._retry_after_s)))}


class ServerError(ApiError):
    def __init__(self, message: str = "Internal server error") -> None:
        super().__init__(message)


class Unavailable(ServerError):
    status = 503
    type = "service_unavailable_error"

    def __init__(self) -> None:
        super().__init__("No replica can serve the request now")

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Retry-After": "1"}


def error_body(error: ApiError, dialect: Dialect) -> dict[str, Any]:
    """The body of an error response."""
    if dialect.openai_errors:
        return {"error": _openai_error(error)}
    return {"object": "error", "message": error.message}


def error_event(error: ApiError) -> dict[str, Any]:
    """The event that tells of an error once the stream has begun; the same in every dialect."""
    return {"error": {**_openai_error(error), "code": error.status}}


def validation_body(errors: Sequence[Any], dialect: Dialect) -> tuple[int, dict[str, Any]]:
    """Status and body for a body that does not fit its schema; at most ten errors, inputs cut short."""
    shown = [_shorten(error) for error in errors[:_MAX_ERRORS]]
    if not dialect.openai_errors:
        return 422, {"detail": shown}
    first = shown[0]
    param = None
    if first["type"] != "json_invalid":  # whose location is a position in the text, not a field
        param = ".".join(str(part) for part in first["loc"] if part != "body") or None
    message = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in shown)
    return 400, error_body(InvalidRequest(message, param=param), dialect)


def _openai_error(error: ApiError) -> dict[str, Any]:
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}


def _shorten(error: Mapping[str, Any]) -> dict[str, Any]:
    """One of pydantic's errors without its context object, its input cut to a readable length."""
    value, message = error.get("input"), str(error["msg"])
    if error["type"] == "json_invalid":
        value, message = None, f"{message}: {error['ctx']['error']}"
    text = str(value)
    if len(text) > _MAX_INPUT:
        value = text[:_MAX_INPUT] + "..."
    elif not isinstance(value, str | int | float | bool | None):
        value = text
    return {
        "type": error["type"],
        "loc": [part if isinstance(part, int) else str(part)[:_MAX_INPUT] for part in error["loc"]][:20],
        "msg": message[:1000],
        "input": value,
    }
