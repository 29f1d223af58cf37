"""The settings for Django's tests of its cache backends: both memcached backends use the server under test."""

import os

_SERVER = os.environ["CACHE_SERVER"]
_BACKENDS = "django.core.cache.backends.memcached"

CACHES = {
    "default": {"BACKEND": f"{_BACKENDS}.PyMemcacheCache", "LOCATION": _SERVER},
    "libmemcached": {"BACKEND": f"{_BACKENDS}.PyLibMCCache", "LOCATION": _SERVER},
}
DATABASES = {name: {"ENGINE": "django.db.backends.sqlite3"} for name in ("default", "other")}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
SECRET_KEY = "of a test"
USE_TZ = False
