"""Amazon MSK's login by IAM: the Java client's settings, obeyed with AWS's own signer.

The mechanism ``AWS_MSK_IAM`` is the Java library's name. Amazon MSK takes the same signature as a
token of ``OAUTHBEARER``, which librdkafka speaks.
"""

import gc
import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_deltaforge.errors import AccessError, RetryableError, SpecError

MECHANISM = "AWS_MSK_IAM"
JAAS, HANDLER = "sasl.jaas.config", "sasl.client.callback.handler.class"
_HANDLER = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
_MODULE = re.compile(
    r"\s*software\.amazon\.msk\.auth\.iam\.IAMLoginModule\s+required"
    r"(?P<options>(?:\s+\w+\s*=\s*(?:\"[^\"]*\"|[^\s\";]+))*)\s*;?\s*"
)
_OPTION = re.compile(r"(\w+)\s*=\s*(?:\"([^\"]*)\"|([^\s\";]+))")
_OPTIONS = {"awsProfileName", "awsRoleArn", "awsRoleSessionName"}
_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com")
_SESSION = "deltaforge"

TokenCallback = Callable[[str], tuple[str, float]]


def asks_for_msk(conf: Mapping[str, Any]) -> bool:
    """Return whether a document's settings name the mechanism."""
    return any(conf.get(key) == MECHANISM for key in ("sasl.mechanism", "sasl.mechanisms"))


def check_msk(conf: Mapping[str, Any], jaas: str | None) -> None:
    """Check the settings of a document that names the mechanism.

    Raises:
        ValueError: one of them cannot be obeyed; the text names it, and shows no value.
    """
    if str(conf.get("security.protocol", "")).upper() != "SASL_SSL":
        raise ValueError(
            f"client_conf: {MECHANISM} needs security.protocol: SASL_SSL, as Amazon MSK does"
        )
    if conf.get(HANDLER) not in (None, _HANDLER):
        raise ValueError(f"client_conf.{HANDLER}: with {MECHANISM} it is {_HANDLER}")
    options(jaas)


def options(jaas: str | None) -> dict[str, str]:
    """Return the options of the login module.

    Raises:
        ValueError: it is another module, or has an option that is not known.
    """
    if jaas is None:
        return {}
    match = _MODULE.fullmatch(jaas)
    if match is None:
        raise ValueError(
            f"client_conf.{JAAS}: with {MECHANISM} it is "
            "'software.amazon.msk.auth.iam.IAMLoginModule required;', with options in front of "
            "the semicolon"
        )
    found = {name: text or word for name, text, word in _OPTION.findall(match["options"])}
    unknown = sorted(found.keys() - _OPTIONS)
    if unknown:
        raise ValueError(
            f"client_conf.{JAAS}: {unknown[0]} is not obeyed (known: {', '.join(sorted(_OPTIONS))})"
        )
    return found


class _Uncollected:
    """Keeps Python's collector off while any thread is between ``begin`` and ``end``.

    It may run in whichever thread allocates. Where that is a client's own and a client is garbage,
    librdkafka aborts the process. So neither method allocates: ``with`` would, as it ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside, self._was_on = 0, False

    def begin(self) -> None:
        self._lock.acquire()
        if not self._inside:
            self._was_on = gc.isenabled()
            gc.disable()
        self._inside += 1
        self._lock.release()

    def end(self) -> None:
        self._lock.acquire()
        self._inside -= 1
        if self._was_on and not self._inside:
            gc.enable()
        self._lock.release()


_uncollected = _Uncollected()


def with_tokens(sink_id: str, brokers: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return librdkafka's settings for those of the Java client."""
    kept = {key: value for key, value in settings.items() if key not in (JAAS, HANDLER)}
    callback = tokens(sink_id, _region(sink_id, brokers), options(settings.get(JAAS)))
    return {**kept, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": callback}


def _region(sink_id: str, brokers: str) -> str:
    match = _REGION.search(brokers)
    region = match.group(1) if match else None
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise SpecError(
            f"sink {sink_id}: client_conf.sasl.mechanism: {MECHANISM} signs for a region, which "
            "'brokers' does not name; set AWS_REGION"
        )
    return region


def tokens(sink_id: str, region: str, chosen: Mapping[str, str]) -> TokenCallback:
    """Return what makes a token with its expiry; the client calls it before one expires.

    The first one is made at once: a client without one waits for ten seconds, and gives no reason.

    Raises:
        SpecError: the signer is not installed.
        AccessError: AWS gives no credentials.
        RetryableError: AWS cannot be asked now.
    """
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
        from botocore.exceptions import BotoCoreError, HTTPClientError
    except ImportError as error:
        raise SpecError(
            f"sink {sink_id}: client_conf.sasl.mechanism: {MECHANISM} needs AWS's signer; "
            "pip install 'airflow-provider-deltaforge[msk]'"
        ) from error
    try:
        first = [_signed(MSKAuthTokenProvider, region, chosen)]
    except HTTPClientError as error:
        raise RetryableError(
            f"sink {sink_id}: {MECHANISM}: AWS cannot be asked for credentials "
            f"({type(error).__name__}); trying again"
        ) from error
    except Exception as error:
        # From many libraries; without credentials the signer fails on a None of its own.
        reason = f" ({type(error).__name__})" if isinstance(error, BotoCoreError) else ""
        raise AccessError(
            f"sink {sink_id}: {MECHANISM}: AWS gives no credentials{reason}; check the "
            "environment, profile or role that the driver runs with"
        ) from error

    def token(_: str) -> tuple[str, float]:
        _uncollected.begin()  # This is a thread of the client's.
        try:
            text, until_ms = first.pop() if first else _signed(MSKAuthTokenProvider, region, chosen)
            made = text, until_ms / 1000
        finally:
            _uncollected.end()
        return made

    return token


def _signed(signer: Any, region: str, chosen: Mapping[str, str]) -> tuple[str, int]:
    if role := chosen.get("awsRoleArn"):
        session = chosen.get("awsRoleSessionName") or _SESSION
        made = signer.generate_auth_token_from_role_arn(region, role, session)
    elif profile := chosen.get("awsProfileName"):
        made = signer.generate_auth_token_from_profile(region, profile)
    else:
        made = signer.generate_auth_token(region)
    return str(made[0]), int(made[1])
