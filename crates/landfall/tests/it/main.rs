//! End-to-end tests of the real binary, its peers beside it. Each ends with the balance of I8.

mod bad_input;
mod bench_lines;
mod capture;
mod capture_cuts;
mod capture_kills;
mod capture_large;
mod capture_orders;
mod changed_tables;
mod changes;
mod check_and_run;
mod commands;
mod demo_runs;
mod kill_loop;
mod official_client;
mod promptness;
mod random;
mod shutdown;
mod site;
mod tools;
mod verify;
mod webhooks;
