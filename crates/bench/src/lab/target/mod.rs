//! The systems that the lab compares: how each is found, started and described.
//!
//! A system is a server program with one durability setting. Related systems share a file with
//! their recipes. A recipe names the programs that a system needs, and its command line and
//! configuration files. They give the system its best reasonable settings on a small machine. Each
//! server runs in its own directory, on a free loopback port.

mod arcus;
mod cassandra;
mod catalogue;
mod checkpoints;
mod confine;
mod larder;
mod mariadb;
mod memcached;
mod mongo;
mod places;
mod postgres;
mod ready;
mod redis;
mod sandbox;
mod server;
pub(crate) mod start_plan;
#[cfg(test)]
mod tests;

pub(crate) use catalogue::{Durability, Found, System, catalogue};
pub(crate) use larder::RUNNING;
pub(crate) use places::tool;
pub(crate) use sandbox::{Sandbox, bounds_page_cache};
pub(crate) use server::Server;
