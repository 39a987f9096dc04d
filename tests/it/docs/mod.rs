//! Compares the documentation with the program: the OpenAPI documents, the configuration reference, the pages of the
//! manuals and their links, the systemd units, completions and man pages.

mod admin;
mod api;
mod cli;
mod configuration;
mod errors;
mod examples;
mod facts;
mod lessons;
mod openapi;
mod pages;
mod reference;
mod simulator;
mod tutorials;
mod units;
mod walk;
mod watching;

use super::{e2e, e2e::process, edge::rig};
