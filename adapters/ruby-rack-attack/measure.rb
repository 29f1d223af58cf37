# frozen_string_literal: true

# Compares the time per request of a throttle of Rack::Attack, with Dalli and with Larder's store, and of throttles
# that Larder decides.
# usage: ruby -Ilib measure.rb MEMCACHED_ADDRESS LARDER_ADDRESS

require 'connection_pool'
require 'dalli'
require 'rack'
require 'rack/attack/larder'

ROUNDS = 7
REQUESTS = 1000
memcached, larder = ARGV
store = Rack::Attack::Larder::Store.new(larder, timeout: 20)
pool = ConnectionPool.new(size: 8) { Dalli::Client.new(memcached) }
plain = -> { Rack::Attack.throttle('user', limit: 1_000_000, period: 3600) { 'user' } }
cases = { 'without a throttle' => [store, -> {}], 'plain, Dalli' => [pool, plain], 'plain, Larder' => [store, plain] }
%i[fixed sliding gcra].each do |algorithm|
  throttle = lambda do
    Rack::Attack::Larder.throttle('user', limit: 1_000_000, period: 3600, algorithm: algorithm) { 'user' }
  end
  cases["#{algorithm}, Larder"] = [store, throttle]
end

times = Hash.new { |all, name| all[name] = [] }
# The cases are interleaved, so that other work on the machine slows all of them alike.
ROUNDS.times do
  cases.each do |name, (cache, throttle)|
    Rack::Attack.clear_configuration
    Rack::Attack.cache.store = cache
    throttle.call
    app = Rack::Attack.new(->(_env) { [200, {}, []] })
    envs = Array.new(REQUESTS) { Rack::MockRequest.env_for('/') }
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    envs.each { |env| app.call(env) }
    times[name] << ((Process.clock_gettime(Process::CLOCK_MONOTONIC) - began) / REQUESTS * 1e6)
  end
end
puts 'microseconds per request: median, fastest'
times.each do |name, taken|
  figures = [taken.sort[ROUNDS / 2], taken.min].map { |time| time.round.to_s.rjust(6) }
  puts "#{name.ljust(20)} #{figures.join(' ')}"
end
