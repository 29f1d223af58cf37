# frozen_string_literal: true

# A real Rack application behind Rack::Attack. Every request names a user, and each user may send LIMIT requests a day.

require 'connection_pool'
require 'dalli'
require 'rack/attack'

Dalli.logger.level = Logger::ERROR
limit = Integer(ENV.fetch('LIMIT'))
Rack::Attack.cache.store = ConnectionPool.new(size: 8) { Dalli::Client.new(ENV.fetch('MEMCACHE_SERVERS')) }
Rack::Attack.throttle('user', limit: limit, period: 86_400) { |request| request.params['user'] }

use Rack::Attack
run ->(_env) { [200, { 'content-type' => 'text/plain' }, ["come in\n"]] }
