# frozen_string_literal: true

# A Rack application whose limits live in Larder.
#
#     larder serve & puma -I ../lib
#     for i in 1 2 3 4 5 6; do curl -i 'http://127.0.0.1:9292/login'; done

require 'rack/attack/larder'

Rack::Attack.cache.store = Rack::Attack::Larder::Store.new(ENV.fetch('LARDER', '127.0.0.1:11211'), fail: :open)
Rack::Attack.throttled_responder = Rack::Attack::Larder::RESPONDER

# A throttle of Rack::Attack itself: Larder only counts.
Rack::Attack.throttle('requests', limit: 1000, period: 60, &:ip)
# Throttles that Larder decides.
Rack::Attack::Larder.throttle('logins', limit: 5, period: 60) { |request| request.ip if request.path == '/login' }
Rack::Attack::Larder.throttle('api', limit: 100, period: 60, algorithm: :gcra, burst: 20) do |request|
  request.ip if request.path.start_with?('/api/')
end

use Rack::Attack
run ->(_env) { [200, { 'content-type' => 'text/plain' }, ["come in\n"]] }
