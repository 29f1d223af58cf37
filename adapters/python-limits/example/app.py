"""A Flask application whose limits live in Larder.

pip install Flask-Limiter && pip install ..
larder serve & flask --app app run
for i in 1 2 3 4 5 6; do curl -i http://127.0.0.1:5000/login; done
"""

import os

from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

import limits_larder  # noqa: F401  (makes the storage and the strategies known by name)

app = Flask(__name__)
limiter = Limiter(
    get_remote_address,
    app=app,
    storage_uri=os.environ.get("LARDER", "larder://127.0.0.1:11211"),
    storage_options={"fail": "open"},
    strategy="larder-sliding-window",
    default_limits=["100 per minute"],
    headers_enabled=True,
)


@app.get("/")
def index():
    return "come in\n"


@app.get("/login")
@limiter.limit("5 per minute")
def login():
    return "who are you?\n"
